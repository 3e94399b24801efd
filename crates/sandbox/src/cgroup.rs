//! Control groups: memory and process limits for a whole process tree, and a kill that no process escapes.
//!
//! Version 2 where its controllers are enabled, else version 1 with one hierarchy a controller.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::policy::ResourceLimits;
use crate::sys;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    V2,
    V1Memory,
    V1Pids,
}

#[derive(Debug)]
struct Folder {
    kind: Hierarchy,
    path: PathBuf,
}

/// A control group of our own. Dropping it kills what is left inside and removes it.
#[derive(Debug)]
pub struct ControlGroup {
    folders: Vec<Folder>,
}

impl ControlGroup {
    /// `None` where control groups are not writable.
    pub fn create(limits: &ResourceLimits) -> Option<Self> {
        let mounts = CgroupMounts::read()?;
        let name = unique_name();
        let mut group = Self {
            folders: Vec::new(),
        };
        if let Some(parent) = mounts.v2().and_then(|own| delegating(&own, mounts.top())) {
            group.try_add(Hierarchy::V2, &parent, &name, limits);
        }
        if group.folders.is_empty() {
            for (kind, controller) in [(Hierarchy::V1Memory, "memory"), (Hierarchy::V1Pids, "pids")]
            {
                if let Some(parent) = mounts.v1(controller) {
                    group.try_add(kind, &parent, &name, limits);
                }
            }
        }
        (!group.folders.is_empty()).then_some(group)
    }

    fn try_add(&mut self, kind: Hierarchy, parent: &Path, name: &str, limits: &ResourceLimits) {
        let path = parent.join(name);
        if fs::create_dir(&path).is_err() {
            return;
        }
        let folder = Folder { kind, path };
        if folder.configure(limits).is_ok() && folder.join_file().is_ok() {
            self.folders.push(folder);
        } else {
            let _ = fs::remove_dir(&folder.path);
        }
    }

    /// Moves a process (and what it forks from now on) into the group.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        for folder in &self.folders {
            let mut file = OpenOptions::new()
                .write(true)
                .open(folder.path.join("cgroup.procs"))?;
            file.write_all(pid.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Kills everything inside, however it was started.
    pub fn kill(&self) {
        for folder in &self.folders {
            folder.kill();
        }
    }

    /// Whether the kernel killed a process inside for lack of memory.
    pub fn out_of_memory(&self) -> bool {
        self.folders.iter().any(Folder::out_of_memory)
    }

    /// Files through which a child moves itself, by writing `0`, before it executes anything.
    pub(crate) fn join_files(&self) -> io::Result<Vec<OwnedFd>> {
        self.folders.iter().map(Folder::join_file).collect()
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(|folder| folder.path.as_path())
    }

    pub(crate) fn limits_memory(&self) -> bool {
        self.folders
            .iter()
            .any(|folder| folder.kind != Hierarchy::V1Pids)
    }

    pub(crate) fn limits_processes(&self) -> bool {
        self.folders
            .iter()
            .any(|folder| folder.kind != Hierarchy::V1Memory)
    }

    pub(crate) fn version(&self) -> &'static str {
        if self
            .folders
            .iter()
            .any(|folder| folder.kind == Hierarchy::V2)
        {
            "cgroup v2"
        } else {
            "cgroup v1"
        }
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        for folder in &self.folders {
            // Busy while a killed process has not exited yet.
            while fs::remove_dir(&folder.path).is_err() && folder.path.exists() {
                if Instant::now() > deadline {
                    break;
                }
                folder.kill();
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Folder {
    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    fn configure(&self, limits: &ResourceLimits) -> io::Result<()> {
        let memory = limits.memory_bytes.to_string();
        let processes = limits.processes.to_string();
        match self.kind {
            Hierarchy::V2 => {
                self.set("memory.max", &memory)?;
                self.set("pids.max", &processes)?;
                // Neither file exists on a kernel without swap accounting, or before 4.19.
                let _ = self.set("memory.swap.max", "0");
                let _ = self.set("memory.oom.group", "1");
                Ok(())
            }
            Hierarchy::V1Memory => {
                self.set("memory.limit_in_bytes", &memory)?;
                let _ = self.set("memory.memsw.limit_in_bytes", &memory);
                let _ = self.set("memory.swappiness", "0");
                Ok(())
            }
            Hierarchy::V1Pids => self.set("pids.max", &processes),
        }
    }

    fn join_file(&self) -> io::Result<OwnedFd> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.procs"))?;
        Ok(file.into())
    }

    fn kill(&self) {
        if self.kind == Hierarchy::V2 && self.set("cgroup.kill", "1").is_ok() {
            return;
        }
        if self.kind != Hierarchy::V1Memory {
            // Nothing can fork while the processes are killed one by one.
            let _ = self.set("pids.max", "0");
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let listed = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            let pids: Vec<i32> = listed
                .lines()
                .filter_map(|line| line.parse().ok())
                .collect();
            // Zero stands for a process outside our own pid namespace.
            let pids: Vec<i32> = pids.into_iter().filter(|pid| *pid > 0).collect();
            if pids.is_empty() || Instant::now() > deadline {
                return;
            }
            for pid in pids {
                sys::kill(pid);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn out_of_memory(&self) -> bool {
        let file = match self.kind {
            Hierarchy::V2 => "memory.events",
            Hierarchy::V1Memory => "memory.oom_control",
            Hierarchy::V1Pids => return false,
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.strip_prefix("oom_kill "))
            .any(|count| count.trim() != "0")
    }
}

fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("warpsmith-{}-{number}", std::process::id())
}

/// The mounted hierarchies, and the group of this process in each.
struct CgroupMounts {
    /// Mount point, root within the hierarchy, controllers (empty for version 2).
    found: Vec<(PathBuf, String, Vec<String>)>,
    own: String,
}

impl CgroupMounts {
    fn read() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let found = table.lines().filter_map(parse_mount).collect();
        Some(Self { found, own })
    }

    fn top(&self) -> &Path {
        self.found
            .iter()
            .find(|(_, _, controllers)| controllers.is_empty())
            .map_or(Path::new("/"), |(point, _, _)| point)
    }

    fn v2(&self) -> Option<PathBuf> {
        let (point, root, _) = self
            .found
            .iter()
            .find(|(_, _, controllers)| controllers.is_empty())?;
        let own = self.own.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(below(point, root, own))
    }

    fn v1(&self, controller: &str) -> Option<PathBuf> {
        let (point, root, _) = self
            .found
            .iter()
            .find(|(_, _, controllers)| controllers.iter().any(|name| name == controller))?;
        let own = self.own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let names = parts.next()?;
            let path = parts.next()?;
            names
                .split(',')
                .any(|name| name == controller)
                .then_some(path)
        })?;
        Some(below(point, root, own))
    }
}

/// One line of `mountinfo`: `ID PARENT DEV ROOT POINT OPTIONS … - TYPE SOURCE SUPER`.
fn parse_mount(line: &str) -> Option<(PathBuf, String, Vec<String>)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let controllers = match right.next()? {
        "cgroup2" => Vec::new(),
        "cgroup" => right.nth(1)?.split(',').map(str::to_owned).collect(),
        _ => return None,
    };
    Some((PathBuf::from(point), root.to_owned(), controllers))
}

/// The folder of group `own` in a hierarchy of which `root` is mounted at `point`.
fn below(point: &Path, root: &str, own: &str) -> PathBuf {
    let rest = own.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    point.join(rest.trim_start_matches('/'))
}

/// The nearest group from `own` upwards that can hold limited groups. Version 2 keeps processes in leaves, so our own
/// group rarely can: a sibling of it is the usual place.
fn delegating(own: &Path, top: &Path) -> Option<PathBuf> {
    let levels = || own.ancestors().take_while(|level| level.starts_with(top));
    let delegates = |level: &Path| {
        let enabled = fs::read_to_string(level.join("cgroup.subtree_control")).unwrap_or_default();
        ["memory", "pids"]
            .iter()
            .all(|wanted| enabled.split_whitespace().any(|name| name == *wanted))
    };
    let writable = |level: &Path| {
        let probe = level.join(format!("{}-probe", unique_name()));
        fs::create_dir(&probe).is_ok_and(|()| fs::remove_dir(&probe).is_ok())
    };
    levels()
        .find(|level| delegates(level) && writable(level))
        .or_else(|| {
            levels().find(|level| {
                fs::write(level.join("cgroup.subtree_control"), "+memory +pids").is_ok()
                    && delegates(level)
            })
        })
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_lines_of_both_versions_are_read() {
        let one = "38 28 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let two = "30 24 0:26 /a /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            parse_mount(one),
            Some((
                PathBuf::from("/sys/fs/cgroup/memory"),
                "/".to_owned(),
                vec!["rw".to_owned(), "memory".to_owned()]
            ))
        );
        assert_eq!(
            parse_mount(two),
            Some((PathBuf::from("/sys/fs/cgroup"), "/a".to_owned(), vec![]))
        );
        assert_eq!(parse_mount("1 2 0:1 / /proc rw - proc proc rw"), None);
    }

    #[test]
    fn a_group_is_found_below_a_partly_mounted_hierarchy() {
        let point = Path::new("/sys/fs/cgroup");
        assert_eq!(below(point, "/", "/a/b"), point.join("a/b"));
        assert_eq!(below(point, "/a", "/a/b"), point.join("b"));
        assert_eq!(below(point, "/", "/"), point.join(""));
    }
}
