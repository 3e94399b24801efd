//! Baselines that workers of a pool share: what one has measured the others do not measure again.
//!
//! The judge keeps each in a file whose name is the hash of all it depends on, and looks for it before it measures. Here new
//! files go to the fleet, and the others' come from it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::ANNOUNCE;
use crate::FleetError;
use crate::link::Link;
use crate::server::write_secret;

pub(super) struct SharedBaselines<'a> {
    link: &'a Link,
    pool: String,
    folder: PathBuf,
    /// Names of files that the fleet has, or that are no news.
    known: RefCell<BTreeSet<String>>,
}

impl<'a> SharedBaselines<'a> {
    pub(super) fn new(link: &'a Link, pool: String, folder: PathBuf) -> Self {
        Self {
            link,
            pool,
            folder,
            known: RefCell::default(),
        }
    }

    /// Brings what others measure, until it is dropped.
    pub(super) async fn follow(&self) {
        loop {
            if let Err(error) = self.watch().await {
                debug!(%error, "baselines of others are looked for again");
            }
            sleep(ANNOUNCE).await;
        }
    }

    async fn watch(&self) -> Result<(), FleetError> {
        let unreadable = |reason: String| FleetError::Unreadable {
            what: "the shared baselines".to_owned(),
            reason,
        };
        let watch = self
            .link
            .baselines
            .watch_with_history(format!("{}.*", self.pool));
        let mut watch = watch.await.map_err(|error| unreadable(error.to_string()))?;
        while let Some(entry) = watch.next().await {
            let entry = entry.map_err(|error| unreadable(error.to_string()))?;
            let name = entry.key.rsplit('.').next().unwrap_or_default();
            let object = String::from_utf8_lossy(&entry.value).into_owned();
            if is_name(name) && self.known.borrow_mut().insert(name.to_owned()) {
                self.bring(name, &object).await?;
            }
        }
        Ok(())
    }

    async fn bring(&self, name: &str, object: &str) -> Result<(), FleetError> {
        let place = self.place(name);
        if place.exists() {
            return Ok(());
        }
        let bytes = self.link.object(object).await?;
        let file = |source| FleetError::File {
            doing: "write",
            path: place.clone(),
            source,
        };
        fs_err::create_dir_all(&self.folder).map_err(file)?;
        write_secret(&place, bytes).map_err(file)
    }

    /// Gives the fleet what was measured here since.
    pub(super) async fn give(&self) {
        let names = new_names(&self.folder, &self.known.borrow());
        for name in names {
            if let Err(error) = self.give_one(&name).await {
                warn!(%error, "a baseline was not shared");
            }
            self.known.borrow_mut().insert(name);
        }
    }

    async fn give_one(&self, name: &str) -> Result<(), FleetError> {
        let place = self.place(name);
        let bytes = fs_err::read(&place).map_err(|source| FleetError::File {
            doing: "read",
            path: place,
            source,
        })?;
        let object = self.link.put_object(&bytes).await?;
        // Where another was quicker, its file stays.
        let key = format!("{}.{name}", self.pool);
        let _ = self.link.baselines.create(key, object.into()).await;
        Ok(())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}

fn new_names(folder: &Path, known: &BTreeSet<String>) -> Vec<String> {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".json")?.to_owned())
    });
    names
        .filter(|name| is_name(name) && !known.contains(name))
        .collect()
}

/// A hash, as the judge writes it: a name from elsewhere must not lead out of the folder.
fn is_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
