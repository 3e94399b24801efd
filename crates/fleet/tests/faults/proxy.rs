//! A network that can be cut: connections go through it, and while it is cut nothing passes and nothing is closed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) struct Proxy {
    pub(crate) port: u16,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cut = Arc::new(AtomicBool::new(false));
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            cut: cut.clone(),
        };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let cut = cut.clone();
                thread::spawn(move || {
                    wait(&cut);
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                        return;
                    };
                    let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let cut_too = cut.clone();
                    thread::spawn(move || pass(from, to, &cut_too));
                    pass(server, client, &cut);
                });
            }
        });
        proxy
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

fn wait(cut: &AtomicBool) {
    while cut.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(20));
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        wait(cut);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
