//! Other processes, through `/proc`.

use std::collections::HashMap;
use std::fs;

/// Processes and threads that belong to `uid`.
pub(crate) fn tasks_of(uid: u32) -> u64 {
    pids()
        .into_iter()
        .filter_map(|pid| told(pid, "status"))
        .filter(|status| field(status, "Uid:") == Some(u64::from(uid)))
        .filter_map(|status| field(&status, "Threads:"))
        .sum()
}

/// Anonymous and shared memory of all descendants of `root` but one, in bytes. Pages that two processes share since a
/// fork count twice.
pub(crate) fn memory_below(root: i32, except: Option<i32>) -> u64 {
    descendants(root)
        .into_iter()
        .filter(|pid| Some(*pid) != except)
        .filter_map(|pid| told(pid, "status"))
        .map(|status| {
            let kibibytes = ["RssAnon:", "RssShmem:"]
                .iter()
                .filter_map(|name| field(&status, name))
                .sum::<u64>();
            kibibytes * 1024
        })
        .sum()
}

/// Every process that comes from `root`, which is not among them.
pub fn descendants(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in pids() {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut remaining = vec![root];
    while let Some(pid) = remaining.pop() {
        if let Some(below) = children.remove(&pid) {
            found.extend(&below);
            remaining.extend(below);
        }
    }
    found
}

/// The oldest child of `parent`.
pub(crate) fn child_of(parent: i32) -> Option<i32> {
    pids()
        .into_iter()
        .filter(|pid| self::parent(*pid) == Some(parent))
        .min()
}

pub(crate) fn kernel_at_least(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|part| part.parse::<u32>().ok());
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    found >= (major, minor)
}

fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// What the kernel tells of a process. Its name is its own choice and need not be text: nobody hides by one.
fn told(pid: i32, what: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/{what}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn parent(pid: i32) -> Option<i32> {
    let stat = told(pid, "stat")?;
    // The name may hold spaces and parentheses; the state follows the last one.
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn field(status: &str, name: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio, id};

    use super::*;

    #[test]
    fn a_name_that_is_no_text_hides_nobody() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "printf '\\377' > /proc/self/comm; echo; read wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap();
        let own = i32::try_from(id()).unwrap();
        let (seen, memory) = (descendants(own), memory_below(own, None));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(name, b"\xff\n");
        assert!(seen.contains(&pid) && memory > 0);
    }
}
