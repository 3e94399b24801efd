//! The modules that a text holds, for texts that are no task: prompts, replies, files of kernels.

/// Each as a file that defines `Model`. Whether that can be read as one is for its reader to find out.
pub(crate) fn modules(text: &str) -> Vec<String> {
    let mut pieces = fenced(text);
    if pieces.is_empty() {
        pieces.push(from_first_statement(text));
    }
    pieces.iter().flat_map(|piece| with_model(piece)).collect()
}

fn fenced(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // How many backticks opened the block, and its lines.
    let mut block: Option<(usize, Vec<&str>)> = None;
    for line in text.lines() {
        let trimmed = line.trim();
        let ticks = trimmed.bytes().take_while(|byte| *byte == b'`').count();
        match &mut block {
            None if ticks >= 3 => block = Some((ticks, Vec::new())),
            None => {}
            Some((opened, lines)) if ticks >= *opened && trimmed.len() == ticks => {
                found.push(lines.join("\n"));
                block = None;
            }
            Some((_, lines)) => lines.push(line),
        }
    }
    // A reply may have been cut off.
    found.extend(block.map(|(_, lines)| lines.join("\n")));
    found
}

/// Prose may stand before the code.
fn from_first_statement(text: &str) -> String {
    let begins = |line: &&str| {
        ["import ", "from ", "class "]
            .iter()
            .any(|word| line.starts_with(word))
    };
    let before = text.lines().take_while(|line| !begins(line)).count();
    let lines: Vec<&str> = text.lines().skip(before).collect();
    lines.join("\n")
}

/// Other collections call their modules by what they do.
fn with_model(piece: &str) -> Vec<String> {
    let classes: Vec<(&str, &str)> = piece.lines().filter_map(class).collect();
    if classes.iter().any(|(name, _)| *name == "Model") {
        return vec![piece.to_owned()];
    }
    let modules = classes.iter().filter(|(_, bases)| bases.contains("Module"));
    modules
        .map(|(name, _)| format!("{piece}\n\nModel = {name}\n"))
        .collect()
}

/// The name of the class that a line begins, and what it is derived from.
fn class(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("class ")?;
    let end = rest.find(['(', ':'])?;
    Some((rest[..end].trim(), &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_fences_in_prose_and_under_other_names() {
        let module = "import torch\n\nclass Model(torch.nn.Module):\n    pass";
        let other = "class Net(nn.Module):\n    pass\n\nclass Plain:\n    pass";
        for (text, found) in [
            (module.to_owned(), vec![module.to_owned()]),
            (format!("Make it fast.\n{module}"), vec![module.to_owned()]),
            (
                format!("Make it fast:\n```python\n{module}\n```\nThank you.\n````\n{other}\n````"),
                vec![module.to_owned(), format!("{other}\n\nModel = Net\n")],
            ),
            (format!("```\n{module}"), vec![module.to_owned()]),
            ("I cannot.\n```\nno code\n```".to_owned(), Vec::new()),
            (String::new(), Vec::new()),
        ] {
            assert_eq!(modules(&text), found, "{text}");
        }
    }
}
