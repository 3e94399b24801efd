//! A server of a few lines that answers as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

/// Answers one connection after the other with these bytes, and hands over what was asked. After the last nobody listens.
pub(crate) fn serve<A>(answers: A) -> (String, Receiver<Value>)
where
    A: IntoIterator<Item = String, IntoIter: Send + 'static>,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (asked, received) = channel();
    let answers = answers.into_iter();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            // Whoever asks may be gone by now, and so may whoever wanted to know.
            let _ = asked.send(serde_json::from_slice(&body).unwrap());
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (url, received)
}
