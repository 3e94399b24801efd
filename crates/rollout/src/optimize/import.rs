//! Whether what is handed over can be imported by somebody else.

use std::path::Path;

use warpsmith_judge::{ImportCheck, JudgeConfig, check_import};
use warpsmith_schema::Task;

use super::package::{FOLDER, PackageOptions, name};
use crate::RolloutError;

/// Imports the package of a result in a fresh process, which also finds out what comes out of which inputs: the package is told.
pub fn import(
    result: &Path,
    task: &Task,
    options: &PackageOptions,
    config: &JudgeConfig,
) -> Result<ImportCheck, RolloutError> {
    let check = check_import(config, result, &options.job(task))?;
    if let ImportCheck::Works { shapes, .. } = &check {
        let path = result.join(FOLDER).join(name(&task.name));
        let path = path.join("_shapes.json");
        fs_err::write(&path, shapes.to_string())
            .map_err(|source| RolloutError::Result { path, source })?;
    }
    Ok(check)
}
