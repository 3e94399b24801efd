//! The HTTP agent for everything this program fetches itself.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::MachineError;

/// A host that does not answer costs at most this; then the next source is tried.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// After this much silence in the middle of a file the download is resumed.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Where distributions keep the certificate bundle, to which administrators add their own authorities.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// For downloads.
pub(crate) fn agent() -> Result<Agent, MachineError> {
    http_agent(READ_LIMIT)
}

/// An agent that honours the proxy variables (ureq does) and the user's certificates, and gives up after `silence`.
pub fn http_agent(silence: Duration) -> Result<Agent, MachineError> {
    let roots = match certificate_bundle() {
        Some(path) => RootCerts::new_with_certs(&certificates(&path)?),
        None => RootCerts::WebPki,
    };
    let config = Agent::config_builder()
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .timeout_resolve(Some(CONNECT_LIMIT))
        .timeout_connect(Some(CONNECT_LIMIT))
        .timeout_recv_response(Some(silence))
        .timeout_per_read(Some(silence))
        .http_status_as_error(false)
        // With compression, byte ranges and progress would be meaningless.
        .accept_encoding("identity")
        .user_agent(concat!("warpsmith/", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(config.into())
}

/// `SSL_CERT_FILE`, else the system's bundle; without either, Mozilla's list as compiled in.
pub(crate) fn certificate_bundle() -> Option<PathBuf> {
    match env::var_os("SSL_CERT_FILE") {
        Some(path) if !path.is_empty() => Some(PathBuf::from(path)),
        _ => SYSTEM_BUNDLES
            .iter()
            .map(PathBuf::from)
            .find(|path| path.is_file()),
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, MachineError> {
    let refused = |reason: String| MachineError::Certificates {
        path: path.to_path_buf(),
        reason,
    };
    let pem = fs_err::read(path).map_err(|error| refused(error.to_string()))?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(refused("no certificate in it".into()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roots.pem");
        fs_err::write(&path, "nothing here").unwrap();
        let error = certificates(&path).unwrap_err();
        assert!(error.to_string().contains("roots.pem"), "{error}");
        assert!(error.hint().unwrap().contains("SSL_CERT_FILE"));
    }
}
