//! Downloads from a local server.
#![allow(
    clippy::unwrap_used,
    clippy::format_collect,
    reason = "a failed expectation is a failed test"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};
use warpsmith_machine::{DownloadSource, MachineError, NoProgress, download};

/// How the server answers.
#[derive(Clone, Copy, PartialEq)]
enum Behavior {
    WithoutRanges,
    WithRanges,
    /// Closes after that many bytes of each answer.
    Breaks(usize),
}

struct Server {
    address: String,
    /// The range of each request, or `whole`.
    asked: Arc<Mutex<Vec<String>>>,
}

fn serve(body: Vec<u8>, behavior: Behavior) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/file.bin", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut range = None;
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let line = line.unwrap().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("range: bytes=") {
                    range = value.trim_end_matches('-').parse::<usize>().ok();
                }
            }
            seen.lock()
                .unwrap()
                .push(range.map_or("whole".into(), |start| start.to_string()));
            let start = range
                .filter(|_| behavior != Behavior::WithoutRanges)
                .unwrap_or(0);
            let head = if start >= body.len() && range.is_some() {
                format!(
                    "HTTP/1.1 416 No\r\ncontent-range: bytes */{}\r\ncontent-length: 0\r\n",
                    body.len()
                )
            } else if start > 0 {
                format!(
                    "HTTP/1.1 206 Part\r\ncontent-range: bytes {start}-{}/{}\r\ncontent-length: {}\r\n",
                    body.len() - 1,
                    body.len(),
                    body.len() - start
                )
            } else {
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len())
            };
            let end = match behavior {
                Behavior::Breaks(count) => body.len().min(start + count),
                _ => body.len(),
            };
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(b"connection: close\r\n\r\n");
            let _ = stream.write_all(body.get(start..end).unwrap_or_default());
        }
    });
    Server { address, asked }
}

fn content() -> Vec<u8> {
    (0..200_000_u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn partial(dest: &Path, hash: &str) -> std::path::PathBuf {
    dest.with_file_name(format!(".file.bin.{}.partial", &hash[..12]))
}

/// Downloads the content from one server, and holds it against what is served.
fn assert_fetched(server: &Server, dest: &Path) {
    let sources = [DownloadSource::Url(server.address.clone())];
    download(&sources, &sha256(&content()), dest, &NoProgress).unwrap();
    assert_eq!(fs_err::read(dest).unwrap(), content());
}

#[test]
fn a_file_arrives_whole_and_is_not_fetched_twice() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("new/folder/file.bin");
    let server = serve(content(), Behavior::WithoutRanges);
    let sources = [DownloadSource::Url(server.address.clone())];
    download(&sources, &sha256(&content()), &dest, &NoProgress).unwrap();
    assert_eq!(fs_err::read(&dest).unwrap(), content());
    download(&sources, &sha256(&content()), &dest, &NoProgress).unwrap();
    assert_eq!(*server.asked.lock().unwrap(), ["whole"]);
    assert_eq!(
        fs_err::read_dir(dest.parent().unwrap()).unwrap().count(),
        1,
        "nothing else is left"
    );
}

#[test]
fn a_wrong_hash_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let server = serve(b"something else".to_vec(), Behavior::WithRanges);
    let wanted = sha256(&content());
    let error = download(
        &[DownloadSource::Url(server.address)],
        &wanted,
        &dest,
        &NoProgress,
    )
    .unwrap_err();
    assert!(matches!(error, MachineError::Download { .. }));
    assert!(
        error.to_string().contains(&sha256(b"something else")),
        "{error}"
    );
    let hint = error.hint().unwrap();
    for needed in ["file.bin", wanted.as_str(), folder.path().to_str().unwrap()] {
        assert!(hint.contains(needed), "{hint}");
    }
    assert!(!dest.exists());
    assert_eq!(fs_err::metadata(partial(&dest, &wanted)).unwrap().len(), 0);
}

#[test]
fn the_next_source_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let wrong = serve(b"something else".to_vec(), Behavior::WithRanges);
    let right = serve(content(), Behavior::WithRanges);
    // Port 9 on the loopback refuses: a source that is not there at all.
    let sources = [
        "http://127.0.0.1:9/file.bin".to_owned(),
        wrong.address,
        right.address,
    ]
    .map(DownloadSource::Url);
    download(&sources, &sha256(&content()), &dest, &NoProgress).unwrap();
    assert_eq!(fs_err::read(&dest).unwrap(), content());
}

#[test]
fn what_an_earlier_run_left_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let hash = sha256(&content());
    fs_err::write(partial(&dest, &hash), &content()[..150_000]).unwrap();
    let server = serve(content(), Behavior::WithRanges);
    assert_fetched(&server, &dest);
    assert_eq!(*server.asked.lock().unwrap(), ["150000"]);
}

#[test]
fn a_server_without_ranges_is_read_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let hash = sha256(&content());
    fs_err::write(partial(&dest, &hash), b"old").unwrap();
    let server = serve(content(), Behavior::WithoutRanges);
    assert_fetched(&server, &dest);
}

#[test]
fn a_connection_that_breaks_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let server = serve(content(), Behavior::Breaks(80_000));
    assert_fetched(&server, &dest);
    assert_eq!(*server.asked.lock().unwrap(), ["whole", "80000", "160000"]);
}

#[test]
fn a_complete_partial_file_needs_no_body() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let hash = sha256(&content());
    fs_err::write(partial(&dest, &hash), content()).unwrap();
    let server = serve(content(), Behavior::WithRanges);
    assert_fetched(&server, &dest);
}

#[test]
fn a_spoiled_partial_file_does_not_block_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("file.bin");
    let hash = sha256(&content());
    fs_err::write(partial(&dest, &hash), [7; 1000]).unwrap();
    let server = serve(content(), Behavior::WithRanges);
    let sources = [DownloadSource::Url(server.address)];
    download(&sources, &hash, &dest, &NoProgress).unwrap();
    assert_eq!(fs_err::read(&dest).unwrap(), content());
}
