//! PTX in the repository belongs to the sources beside it.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn ptx_was_made_from_these_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut made = 0;
    for entry in fs::read_dir(root.join("cuda")).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_none_or(|kind| kind != "cu") {
            continue;
        }
        let text = fs::read_to_string(&source).unwrap();
        let mut digest = Sha256::new();
        // The headers it names, in their order, then itself.
        let named = text
            .lines()
            .filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
        for header in named {
            digest.update(fs::read(root.join("cuda").join(header)).unwrap());
        }
        let digest = digest.chain_update(&text).finalize();
        let name = source.file_stem().unwrap().to_str().unwrap();
        let kinds: &[u32] = match name {
            "few_rows" | "hopper_attention" => &[90],
            _ => &[80, 90],
        };
        for kind in kinds {
            let ptx = fs::read_to_string(root.join(format!("ptx/{kind}/{name}.ptx"))).unwrap();
            let wanted = format!("// made by scripts/kernels-ptx from {digest:x}");
            assert_eq!(
                ptx.lines().next(),
                Some(wanted.as_str()),
                "{name}: run scripts/kernels-ptx"
            );
            made += 1;
        }
    }
    let there = ["80", "90"].map(|kind| fs::read_dir(root.join("ptx").join(kind)).unwrap().count());
    assert_eq!(made, there.iter().sum::<usize>());
}
