//! What is done to results before they are stored for the first time: by a library a bias or a `relu`, by a scan anything.

use crate::attention::{AttentionKernel, AttentionMask};
use crate::index::{Index, coordinates, linear};
use crate::library::Library;
use crate::lower::LoweredGraph;
use crate::plan::{Kernel, Plan, RowKernel, ScanEpilogue, Strategy};
use crate::scalar::{Binary, Buffer, ElementType, Node, Scalar, ScalarType};
use warpsmith_schema::Target;

/// Takes elementwise steps into the library call before them, where that call can do the same, and into the scan.
pub(super) fn fuse(planned: &mut LoweredGraph) {
    if planned.plan.target != Target::Cuda {
        return;
    }
    let mut place = 0;
    while place + 1 < planned.plan.steps.len() {
        if let Some((bias, relu, out)) = fusable(&mut planned.plan, place, &planned.returns) {
            let step = planned.plan.steps.remove(place + 1);
            planned.plan.steps[place].operators.extend(step.operators);
            if let Kernel::Library(library) = &mut planned.plan.steps[place].kernel {
                *library.epilogue() = crate::library::Epilogue { bias, relu };
                match library {
                    Library::Gemm(gemm) => gemm.out = out,
                    Library::Convolution(conv) => conv.out = out,
                }
            }
        }
        if let Some(then) = stored_by_scan(&mut planned.plan, place, &planned.returns) {
            let step = planned.plan.steps.remove(place + 1);
            let before = &mut planned.plan.steps[place];
            before.name = format!("{}_{}", before.name, step.name);
            before.operators.extend(step.operators);
            if let (Kernel::Scan(scan), Kernel::Rows(rows)) = (&mut before.kernel, step.kernel) {
                scan.out = rows.out;
                scan.epilogue = Some(then);
            }
        }
        place += 1;
    }
}

/// An elementwise step that follows a scan and needs of it no more than the element that it stores.
fn stored_by_scan(plan: &mut Plan, place: usize, returns: &[Buffer]) -> Option<ScanEpilogue> {
    let (scan, rows) = match (
        &plan.steps[place].kernel,
        &plan.steps.get(place + 1)?.kernel,
    ) {
        (Kernel::Scan(scan), Kernel::Rows(rows))
            if scan.epilogue.is_none() && rows.reductions.is_empty() =>
        {
            (scan.clone(), rows.clone())
        }
        _ => return None,
    };
    let from = scan.out;
    let unneeded = !returns.contains(&from) && !is_read_later(plan, place + 2, from);
    let size = |shape: &[i64]| shape.iter().product::<i64>();
    let fits = plan.strategy != Strategy::Plain
        && plan.buffers[rows.out.0].element == ElementType::Float
        && scan.kind == ScalarType::Float
        && rows.row_shape == rows.shape
        && size(&rows.shape) == size(&scan.shape);
    if !unneeded || !fits {
        return None;
    }
    let then = ScanEpilogue {
        shape: rows.shape.clone(),
        value: rows.value.clone(),
        scanned: from,
    };
    let stored = then.at_variable(plan);
    let read = plan.arena.ordered(&[stored.value]);
    let read: Vec<Scalar> = read
        .into_iter()
        .filter(|one| loads_from(plan, *one, from))
        .collect();
    (read == [stored.scanned]).then_some(then)
}

/// The bias, whether there is a `relu`, and where the result goes.
fn fusable(
    plan: &mut Plan,
    place: usize,
    returns: &[Buffer],
) -> Option<(Option<Buffer>, bool, Buffer)> {
    let (mut library, rows) = match (&plan.steps[place].kernel, &plan.steps[place + 1].kernel) {
        (Kernel::Library(library), Kernel::Rows(rows)) if rows.reductions.is_empty() => {
            (library.clone(), rows.clone())
        }
        _ => return None,
    };
    let from = library.out();
    if returns.contains(&from) || is_read_later(plan, place + 2, from) {
        return None;
    }
    // Along which elements of the result the bias lies.
    let (period, repeat) = match &library {
        Library::Gemm(gemm) => (gemm.n, 1),
        Library::Convolution(conv) => (conv.filters, conv.output.iter().product::<i64>()),
    };
    if plan.buffers[rows.out.0].element != ElementType::Float {
        return None;
    }
    let count: i64 = rows.row_shape.iter().product();
    let flat = Index::from(plan.arena.var(count));
    let value = (rows.value)(&mut plan.arena, &coordinates(&rows.row_shape, &flat));
    let value = plan.resolve(value, &[]);
    let (sum, relu) = without_relu(plan, value);
    let own = plan.arena.load(from, flat.clone());
    let whole = linear(&rows.shape, &coordinates(&rows.row_shape, &flat)) == flat;
    if !whole {
        return None;
    }
    let known = library.epilogue().bias;
    if sum == own && relu {
        return Some((known, relu, rows.out));
    }
    if known.is_some() {
        return None;
    }
    let Node::Binary(Binary::Add, x, bias) = *plan.arena.node(sum) else {
        return None;
    };
    let Node::Load {
        buffer,
        index,
        guard,
        looked_up,
    } = plan.arena.node(bias).clone()
    else {
        return None;
    };
    let plain = guard.is_empty() && looked_up.is_empty();
    let along = flat.divided(repeat).remainder(period);
    let size: i64 = plan.buffers[buffer.0].shape.iter().product();
    let readable = plan.buffers[buffer.0].is_float_memory();
    let fits = x == own && plain && index == along && size == period && readable;
    fits.then_some((Some(buffer), relu, rows.out))
}

fn without_relu(plan: &mut Plan, value: Scalar) -> (Scalar, bool) {
    let Node::Select(condition, then, otherwise) = *plan.arena.node(value) else {
        return (value, false);
    };
    let zero = plan.arena.constant(0.0);
    let below = plan.arena.less(otherwise, zero);
    if then == zero && condition == below {
        (otherwise, true)
    } else {
        (value, false)
    }
}

fn is_read_later(plan: &mut Plan, from: usize, buffer: Buffer) -> bool {
    let later: Vec<Kernel> = plan.steps[from..]
        .iter()
        .map(|step| step.kernel.clone())
        .collect();
    later.into_iter().any(|kernel| match kernel {
        Kernel::Library(library) => library.reads().contains(&buffer),
        Kernel::Rows(rows) => reads(plan, &rows, buffer),
        Kernel::Attention(attention) => attention_reads(plan, &attention, buffer),
        Kernel::Scan(scan) => {
            let at = scan.shape.map(|extent| Index::from(plan.arena.var(extent)));
            let value = (scan.value)(&mut plan.arena, &at);
            loads(plan, value, buffer)
        }
    })
}

fn attention_reads(plan: &mut Plan, kernel: &AttentionKernel, buffer: Buffer) -> bool {
    let mask = kernel.mask.as_ref().map(|mask| match mask {
        AttentionMask::Seen(body) | AttentionMask::Added(body) => body,
    });
    let bodies = [
        Some(&kernel.query),
        Some(&kernel.key),
        Some(&kernel.value),
        mask,
    ];
    bodies.into_iter().flatten().any(|body| {
        let at = [(); 3].map(|()| Index::from(plan.arena.var(2)));
        let value = body(&mut plan.arena, &at);
        let value = plan.resolve(value, &[]);
        loads(plan, value, buffer)
    })
}

fn reads(plan: &mut Plan, rows: &RowKernel, buffer: Buffer) -> bool {
    let mut fresh = |shape: &[i64]| -> Vec<Index> {
        shape
            .iter()
            .map(|extent| Index::from(plan.arena.var(*extent)))
            .collect()
    };
    let (row, cell) = (fresh(&rows.outer), fresh(&rows.row_shape));
    let value = (rows.value)(&mut plan.arena, &(rows.index_map)(&row, &cell));
    let mut values = vec![value];
    for pass in &rows.reductions {
        let reduction = plan.reductions[pass.reduction.0].clone();
        let inner: Vec<Index> = reduction
            .extents
            .iter()
            .map(|extent| Index::from(plan.arena.var(*extent)))
            .collect();
        values.push((reduction.body)(
            &mut plan.arena,
            &(pass.outer)(&row),
            &inner,
        ));
    }
    values.into_iter().any(|value| loads(plan, value, buffer))
}

fn loads(plan: &Plan, value: Scalar, wanted: Buffer) -> bool {
    let mut ordered = plan.arena.ordered(&[value]).into_iter();
    ordered.any(|one| loads_from(plan, one, wanted))
}

fn loads_from(plan: &Plan, one: Scalar, wanted: Buffer) -> bool {
    matches!(plan.arena.node(one), Node::Load { buffer, .. } if *buffer == wanted)
}
