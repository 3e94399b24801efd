//! Versions of a policy: announced once, fetched once by each machine that needs them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::link::{Link, decoded, encoded};
use crate::server::write_secret;
use crate::{FleetError, FleetServers};

/// What was announced last under a policy's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedPolicy {
    /// Of the learner's steps.
    pub version: u64,
    /// The object that holds the adapter's file, named by its hash.
    pub object: String,
    pub bytes: u64,
}

/// The versions of policies that a fleet knows.
pub struct PolicyShelf {
    link: Link,
    runtime: tokio::runtime::Runtime,
}

impl PolicyShelf {
    pub fn open(servers: &FleetServers) -> Result<Self, FleetError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let link = runtime.block_on(Link::open(servers, "policies"))?;
        Ok(Self { link, runtime })
    }

    /// Puts an adapter on the shelf. An older version never replaces a newer one.
    pub fn announce(
        &self,
        policy: &str,
        version: u64,
        adapter: &Path,
    ) -> Result<AnnouncedPolicy, FleetError> {
        let bytes = fs_err::read(adapter).map_err(|source| FleetError::File {
            doing: "read",
            path: adapter.to_path_buf(),
            source,
        })?;
        self.runtime.block_on(async {
            let announced = AnnouncedPolicy {
                version,
                object: self.link.put_object(&bytes).await?,
                bytes: bytes.len() as u64,
            };
            let value = encoded(&announced)?;
            loop {
                let known = self.known(policy).await?;
                let revision = known.as_ref().map_or(0, |(revision, _)| *revision);
                if let Some((_, known)) = known
                    && known.version >= version
                {
                    return Ok(known);
                }
                let put = self
                    .link
                    .policies
                    .update(policy, value.clone().into(), revision);
                if put.await.is_ok() {
                    return Ok(announced);
                }
                // Another was announced meanwhile.
            }
        })
    }

    pub fn latest(&self, policy: &str) -> Result<Option<AnnouncedPolicy>, FleetError> {
        let known = self.runtime.block_on(self.known(policy))?;
        Ok(known.map(|(_, announced)| announced))
    }

    /// The adapter's file below a folder of this machine. What is there already is not fetched again.
    pub fn fetch(&self, announced: &AnnouncedPolicy, folder: &Path) -> Result<PathBuf, FleetError> {
        let place = folder.join(&announced.object);
        let file = |source| FleetError::File {
            doing: "write",
            path: place.clone(),
            source,
        };
        if fs_err::metadata(&place).is_ok_and(|found| found.len() == announced.bytes) {
            return Ok(place);
        }
        let bytes = self.runtime.block_on(self.link.object(&announced.object))?;
        fs_err::create_dir_all(folder).map_err(file)?;
        write_secret(&place, &bytes).map_err(file)?;
        Ok(place)
    }

    async fn known(&self, policy: &str) -> Result<Option<(u64, AnnouncedPolicy)>, FleetError> {
        let entry = self.link.policies.entry(policy).await;
        let entry = entry.map_err(|error| FleetError::Unreadable {
            what: policy.to_owned(),
            reason: error.to_string(),
        })?;
        match entry {
            Some(entry) => {
                let announced = decoded("a policy's version", &entry.value)?;
                Ok(Some((entry.revision, announced)))
            }
            None => Ok(None),
        }
    }
}
