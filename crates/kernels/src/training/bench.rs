//! A device with room for the passes of all that learn on it in turn.

use super::batch::{Batch, DeviceBatch};
use super::factors::Between;
use super::layout::Shape;
use super::learnt::Learnt;
use super::pass::Pass;
use super::rows::turns;
use super::work::{ROUND_CHUNK, Room, Work};
use crate::{Buffer, Gpu, GpuError};

pub struct Bench {
    gpu: Gpu,
    shape: Shape,
    /// Nothing until room is made, and where there was not enough memory for it.
    laid: Option<Laid>,
    /// How often room was made: what was recorded before knows other addresses.
    times: u64,
}

pub(super) struct Laid {
    pub(super) work: Work,
    pub(super) batch: DeviceBatch,
    turns: Buffer<f32>,
}

impl Bench {
    /// For models of one shape; there is no room yet.
    pub fn new(gpu: Gpu, shape: Shape) -> Result<Self, GpuError> {
        shape.check()?;
        let (width, most) = (shape.hidden, gpu.training()?.longest_row);
        if width > most {
            return Err(GpuError::TooWide { width, most });
        }
        Ok(Self {
            gpu,
            shape,
            laid: None,
            times: 0,
        })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What there is room for.
    pub fn room(&self) -> Option<Room> {
        self.laid.as_ref().map(|laid| laid.work.room)
    }

    /// Gives back the room there was, and takes this.
    pub fn make_room(&mut self, room: Room) -> Result<(), GpuError> {
        self.clear()?;
        let batch = DeviceBatch::new(&self.gpu, room.rows, self.shape.head_dim)?;
        let room = Room {
            rows: batch.room(),
            chunk: room.chunk.next_multiple_of(ROUND_CHUNK),
            ..room
        };
        self.laid = Some(Laid {
            work: Work::new(&self.gpu, &self.shape, room)?,
            turns: self
                .gpu
                .upload(&turns(&self.shape.frequencies, room.positions))?,
            batch,
        });
        Ok(())
    }

    /// Makes room for sequences of so many tokens together, of which none is longer than `positions`, where there is not
    /// enough of it. Layers are kept if the device has the memory, and else made again.
    pub fn fit(&mut self, rows: usize, positions: usize, between: Between) -> Result<(), GpuError> {
        let (mut wanted, mut longest, mut most) = (rows, positions, between);
        if let Some(there) = self.room() {
            most = most.max(there.between);
            if rows <= there.rows && positions <= there.positions && most == there.between {
                return Ok(());
            }
            wanted = wanted.max(there.rows);
            longest = longest.max(there.positions);
        }
        self.clear()?;
        // A little more than asked for: the next batch may be a little larger.
        let (wanted, longest) = (
            wanted.next_multiple_of(1024),
            longest.next_multiple_of(1024),
        );
        let (free, _) = self.gpu.memory()?;
        let room = Room {
            between: most,
            ..Room::new(&self.shape, wanted, longest)
        };
        // Others need some too.
        self.make_room(room.within(&self.shape, free / 8 * 7)?)
    }

    fn clear(&mut self) -> Result<(), GpuError> {
        self.laid = None;
        self.times += 1;
        // The device counts it as free only then.
        self.gpu.wait()
    }

    pub(super) fn times(&self) -> u64 {
        self.times
    }

    pub(super) fn laid(&self) -> Result<&Laid, GpuError> {
        self.laid.as_ref().ok_or(NO_ROOM)
    }

    pub(super) fn load(&mut self, batch: &Batch) -> Result<(), GpuError> {
        let laid = self.laid.as_mut().ok_or(NO_ROOM)?;
        let longest = batch.lengths.iter().max().copied().unwrap_or(0);
        let room = laid.work.room.positions;
        if longest > room {
            return Err(GpuError::NoRoom {
                what: "positions",
                count: longest,
                room,
            });
        }
        laid.batch.load(&self.gpu, batch)
    }

    pub(super) fn batch(&mut self) -> Result<(&Gpu, &mut DeviceBatch), GpuError> {
        let laid = self.laid.as_mut().ok_or(NO_ROOM)?;
        Ok((&self.gpu, &mut laid.batch))
    }

    pub(super) fn pass<'a>(&'a mut self, learnt: &'a mut Learnt) -> Result<Pass<'a>, GpuError> {
        let laid = self.laid.as_mut().ok_or(NO_ROOM)?;
        Ok(Pass {
            gpu: &self.gpu,
            shape: &self.shape,
            learnt,
            work: &mut laid.work,
            batch: &mut laid.batch,
            turns: &laid.turns,
        })
    }
}

const NO_ROOM: GpuError = GpuError::NoRoom {
    what: "rows",
    count: 1,
    room: 0,
};
