use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::command;

const LIMIT: Duration = Duration::from_secs(5);

/// A GPU as the driver names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    pub index: u32,
    pub name: String,
    pub uuid: String,
    pub memory_bytes: u64,
    pub compute_capability: (u32, u32),
    pub driver: String,
    /// The highest clock it may run at, where the driver tells.
    pub max_sm_mhz: Option<u32>,
    pub pci_bus: String,
}

impl Gpu {
    /// As `nvcc -arch` wants it. Hopper's own instructions need the `a`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.compute_capability;
        let suffix = if major >= 9 { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// How a GPU runs at this moment: evidence for a timing, and the reason for a slow one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Clocks {
    pub sm_mhz: Option<u32>,
    pub memory_mhz: Option<u32>,
    pub temperature_c: Option<f64>,
    pub power_w: Option<f64>,
    /// Percent of the last sample during which a kernel ran.
    pub utilisation: Option<f64>,
}

/// The GPUs of this machine; none where there is no driver or it does not answer.
pub fn gpus() -> Vec<Gpu> {
    const FIELDS: &str =
        "index,name,uuid,memory.total,compute_cap,driver_version,clocks.max.sm,pci.bus_id";
    query(FIELDS, None)
        .map(|text| text.lines().filter_map(read_gpu).collect())
        .unwrap_or_default()
}

/// The clocks of one GPU now.
pub fn gpu_clocks(index: u32) -> Option<Clocks> {
    const FIELDS: &str = "clocks.sm,clocks.mem,temperature.gpu,power.draw,utilization.gpu";
    read_clocks(query(FIELDS, Some(index))?.lines().next()?)
}

fn query(fields: &str, index: Option<u32>) -> Option<String> {
    let program = command::on_path("nvidia-smi").into_iter().next()?;
    let mut command = Command::new(program);
    command
        .arg(format!("--query-gpu={fields}"))
        .arg("--format=csv,noheader,nounits");
    if let Some(index) = index {
        command.arg(format!("--id={index}"));
    }
    let answer = command::ask(&mut command, LIMIT).ok()?;
    answer.success.then_some(answer.stdout)
}

fn read_gpu(line: &str) -> Option<Gpu> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, name, uuid, memory, capability, driver, clock, bus] = fields[..] else {
        return None;
    };
    let (major, minor) = capability.split_once('.')?;
    Some(Gpu {
        index: index.parse().ok()?,
        name: name.to_owned(),
        uuid: uuid.to_owned(),
        memory_bytes: memory.parse::<u64>().ok()? << 20,
        compute_capability: (major.parse().ok()?, minor.parse().ok()?),
        driver: driver.to_owned(),
        max_sm_mhz: clock.parse().ok(),
        pci_bus: bus.to_owned(),
    })
}

fn read_clocks(line: &str) -> Option<Clocks> {
    // A field the board does not have reads `[N/A]`: absent, not an error.
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [sm, memory, temperature, power, utilisation] = fields[..] else {
        return None;
    };
    Some(Clocks {
        sm_mhz: sm.parse().ok(),
        memory_mhz: memory.parse().ok(),
        temperature_c: temperature.parse().ok(),
        power_w: power.parse().ok(),
        utilisation: utilisation.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_table_is_read() {
        let gpu =
            read_gpu("0, NVIDIA H200, GPU-1c2d, 143771, 9.0, 580.95.05, 1980, 00000000:19:00.0")
                .unwrap();
        assert_eq!(
            (gpu.memory_bytes, gpu.compute_capability, gpu.max_sm_mhz),
            (143_771 << 20, (9, 0), Some(1980))
        );
        assert_eq!(gpu.arch(), "sm_90a");
        assert_eq!(read_gpu("No devices were found"), None);
    }

    #[test]
    fn an_absent_sensor_is_none() {
        let clocks = read_clocks("345, 3201, 31, [N/A], 0").unwrap();
        assert_eq!(
            (clocks.sm_mhz, clocks.power_w, clocks.utilisation),
            (Some(345), None, Some(0.0))
        );
    }
}
