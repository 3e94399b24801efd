//! Between candle's tensors and those of the model.

use candle_core::{Device, Tensor};
use warpsmith_model::HostTensor;

pub(in crate::network) fn from_host(tensor: &HostTensor) -> candle_core::Result<Tensor> {
    Tensor::from_slice(tensor.data(), tensor.shape(), &Device::Cpu)
}

pub(in crate::network) fn to_host(tensor: &Tensor) -> candle_core::Result<HostTensor> {
    let numbers = tensor.flatten_all()?.to_vec1()?;
    Ok(HostTensor::new(tensor.dims(), numbers))
}
