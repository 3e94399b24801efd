//! The device for one who measures on it, alone.

use std::io::ErrorKind;
use std::time::Duration;

use warpsmith_machine::{DeviceLease, GpuInfo};

use crate::JudgeError;

const PATIENCE: Duration = Duration::from_mins(10);

/// Of this GPU, or of the processor.
pub(crate) fn lease_device(gpu: Option<&GpuInfo>) -> Result<DeviceLease, JudgeError> {
    let device = gpu.map_or("cpu", |gpu| gpu.uuid.as_str());
    DeviceLease::acquire(device, PATIENCE).map_err(|error| {
        if error.kind() == ErrorKind::TimedOut {
            JudgeError::Infrastructure {
                code: "device_busy",
                message: error.to_string(),
                hint: Some(
                    "another judgement is being timed on this device; judge again when it is done"
                        .to_owned(),
                ),
            }
        } else {
            JudgeError::io("lease the device")(error)
        }
    })
}
