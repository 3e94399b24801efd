//! A bundle of evidence on its way from the worker that made it to the run that wants it.

use std::collections::BTreeMap;
use std::path::Path;

use warpsmith_schema::Verdict;
use warpsmith_store::evidence::free_place;
use warpsmith_store::{Bundle, StoreError};

use crate::FleetError;
use crate::link::{decoded, encoded};
use crate::wire::FileContent;

const VERDICT: &str = "verdict.json";

fn unreadable(error: &StoreError) -> FleetError {
    FleetError::Unreadable {
        what: "a bundle".to_owned(),
        reason: error.to_string(),
    }
}

/// Every file of a bundle, checked against its manifest.
pub(crate) fn pack(place: &Path) -> Result<Vec<u8>, FleetError> {
    let bundle = Bundle::open(place).map_err(|error| unreadable(&error))?;
    let mut files = BTreeMap::new();
    for name in bundle.names() {
        let content = bundle.read(name).map_err(|error| unreadable(&error))?;
        files.insert(name.to_owned(), FileContent::from(content));
    }
    encoded(&files)
}

/// Writes the bundle at a place of this machine, which the verdict then names.
pub(crate) fn unpack(
    bytes: &[u8],
    place: &Path,
    mut verdict: Verdict,
) -> Result<Verdict, FleetError> {
    let files: BTreeMap<String, FileContent> = decoded("a bundle", bytes)?;
    let write = || {
        let place = std::path::absolute(free_place(place)).map_err(|source| StoreError::Write {
            path: place.to_path_buf(),
            source,
        })?;
        verdict.evidence = Some(place.display().to_string());
        let mut bundle = Bundle::create(&place)?;
        // Names that lead out of the bundle are refused there.
        for (name, content) in files {
            if name == VERDICT {
                bundle.write_json(VERDICT, &verdict)?;
            } else {
                bundle.write(&name, &content.into_bytes())?;
            }
        }
        bundle.finish()?;
        Ok::<Verdict, StoreError>(verdict)
    };
    write().map_err(|error| unreadable(&error))
}

#[cfg(test)]
mod tests {
    use warpsmith_schema::{Profile, Status, Target};

    use super::*;

    fn verdict() -> Verdict {
        let device = "NVIDIA H200".to_owned();
        Verdict::unreached(Status::Passed, Target::Cuda, Profile::Full, device)
    }

    #[test]
    fn a_bundle_that_leads_out_of_its_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = BTreeMap::from([("../escape", "x")]);
        let verdict = verdict();
        let bytes = serde_json::to_vec(&files).unwrap();
        let error = unpack(&bytes, &folder.path().join("bundle"), verdict).unwrap_err();
        assert!(error.to_string().contains("escape"), "{error}");
        assert!(!folder.path().join("escape").exists());
    }

    #[test]
    fn a_bundle_arrives_as_it_left_and_names_its_new_place() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = verdict();
        let there = folder.path().join("there");
        let mut bundle = Bundle::create(&there).unwrap();
        bundle.write("task.py", b"x = 1").unwrap();
        bundle.write("submission/kernels/a.cu", &[0xff, 0]).unwrap();
        bundle.write_json(VERDICT, &verdict).unwrap();
        bundle.finish().unwrap();
        let here = folder.path().join("here");
        let got = unpack(&pack(&there).unwrap(), &here, verdict).unwrap();
        assert_eq!(got.evidence.as_deref(), here.to_str());
        let bundle = Bundle::open(&here).unwrap();
        assert_eq!(bundle.read("task.py").unwrap(), b"x = 1");
        assert_eq!(bundle.read("submission/kernels/a.cu").unwrap(), [0xff, 0]);
        let written: Verdict = serde_json::from_slice(&bundle.read(VERDICT).unwrap()).unwrap();
        assert_eq!(written, got);
    }
}
