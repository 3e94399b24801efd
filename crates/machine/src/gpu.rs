//! GPUs and their present state, from NVIDIA's management library.
//!
//! The library is loaded at run time: where it is missing there is no driver, and so no GPU. A driver that hangs must
//! not hang us, so every question has a time limit.

use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use serde::Serialize;

const LIMIT: Duration = Duration::from_secs(5);

/// A GPU as the driver names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuInfo {
    pub index: u32,
    pub name: String,
    pub uuid: String,
    pub memory_bytes: u64,
    pub compute_capability: (u32, u32),
    pub driver: String,
    /// The highest clock it may run at, where the driver says.
    pub max_sm_mhz: Option<u32>,
    pub pci_bus: String,
}

impl GpuInfo {
    /// The architecture for `nvcc -arch`. Hopper's own instructions need the `a`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.compute_capability;
        let suffix = if major >= 9 { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// The state of a GPU at this moment. A sensor that the board lacks is absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuClocks {
    pub sm_mhz: Option<u32>,
    pub memory_mhz: Option<u32>,
    pub temperature_c: Option<f64>,
    pub power_w: Option<f64>,
    /// Percent of the driver's last sampling period during which a kernel ran.
    pub utilization_percent: Option<f64>,
}

/// The GPUs of this machine; none where there is no driver or it does not answer.
pub fn gpus() -> Vec<GpuInfo> {
    ask(|nvml| {
        let count = nvml.device_count()?;
        // A board that fails does not hide the others.
        Ok((0..count)
            .filter_map(|index| gpu_info(nvml, index).ok())
            .collect())
    })
    .unwrap_or_default()
}

/// The clocks of one GPU now.
pub fn gpu_clocks(index: u32) -> Option<GpuClocks> {
    ask(move |nvml| {
        let device = nvml.device_by_index(index)?;
        let temperature = device.temperature(TemperatureSensor::Gpu);
        let utilization = device.utilization_rates();
        Ok(GpuClocks {
            sm_mhz: device.clock_info(Clock::SM).ok(),
            memory_mhz: device.clock_info(Clock::Memory).ok(),
            temperature_c: temperature.ok().map(f64::from),
            power_w: device.power_usage().ok().map(|mw| f64::from(mw) / 1000.0),
            utilization_percent: utilization.ok().map(|rates| f64::from(rates.gpu)),
        })
    })
}

fn gpu_info(nvml: &Nvml, index: u32) -> Result<GpuInfo, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let capability = device.cuda_compute_capability()?;
    Ok(GpuInfo {
        index,
        name: device.name()?,
        uuid: device.uuid()?,
        memory_bytes: device.memory_info()?.total,
        compute_capability: (
            capability.major.unsigned_abs(),
            capability.minor.unsigned_abs(),
        ),
        driver: nvml.sys_driver_version()?,
        max_sm_mhz: device.max_clock_info(Clock::SM).ok(),
        pci_bus: device.pci_info()?.bus_id,
    })
}

/// The driver's answer, if there is a driver and it answers in time.
fn ask<T: Send + 'static>(
    question: impl FnOnce(&'static Nvml) -> Result<T, NvmlError> + Send + 'static,
) -> Option<T> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let nvml = NVML.get_or_init(|| Nvml::init().ok());
        let answer = nvml.as_ref().and_then(|nvml| question(nvml).ok());
        // Nobody listens any more after the limit.
        let _ = sender.send(answer);
    });
    receiver.recv_timeout(LIMIT).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_is_named_as_nvcc_does() {
        let gpu = |compute_capability| GpuInfo {
            index: 0,
            name: "NVIDIA H200".to_owned(),
            uuid: "GPU-1c2d".to_owned(),
            memory_bytes: 143_771 << 20,
            compute_capability,
            driver: "580.95.05".to_owned(),
            max_sm_mhz: Some(1980),
            pci_bus: "00000000:19:00.0".to_owned(),
        };
        assert_eq!(gpu((9, 0)).arch(), "sm_90a");
        assert_eq!(gpu((8, 0)).arch(), "sm_80");
    }

    /// With or without a driver: what there is has a state, and what there is not has none.
    #[test]
    fn every_gpu_has_clocks_and_no_other() {
        let found = gpus();
        for gpu in &found {
            assert!(gpu_clocks(gpu.index).is_some(), "{gpu:?}");
        }
        assert_eq!(gpu_clocks(found.len() as u32), None);
    }
}
