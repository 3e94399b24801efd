//! Tools on files.

use super::args::{Change, Grep, Read, Write};
use super::{ToolAnswer, Tools};

impl Tools<'_> {
    pub(super) fn read(&mut self, args: &Read) -> ToolAnswer {
        let text = match self.workspace.read(&args.path) {
            Ok(text) => text,
            Err(refused) => return ToolAnswer::bad(refused.to_string()),
        };
        let first = args.offset.unwrap_or(1).max(1);
        let lines = text.lines().enumerate().skip(first - 1);
        let shown: Vec<String> = lines
            .take(args.limit.unwrap_or(usize::MAX))
            .map(|(number, line)| format!("{:>5}  {line}", number + 1))
            .collect();
        if shown.is_empty() {
            let count = text.lines().count();
            return ToolAnswer::good(format!("`{}` has {count} lines", args.path));
        }
        ToolAnswer::good(shown.join("\n"))
    }

    pub(super) fn write(&mut self, args: &Write) -> ToolAnswer {
        match self.workspace.write(&args.path, &args.content) {
            Ok(()) => ToolAnswer::good(format!(
                "wrote `{}`, {} lines",
                args.path,
                args.content.lines().count()
            )),
            Err(refused) => ToolAnswer::bad(refused.to_string()),
        }
    }

    /// All changes or none.
    pub(super) fn edit(&mut self, path: &str, changes: &[Change]) -> ToolAnswer {
        // Whoever can name text of the file has seen it.
        let mut text = match self.workspace.read(path) {
            Ok(text) => text,
            Err(refused) => return ToolAnswer::bad(refused.to_string()),
        };
        for (number, change) in changes.iter().enumerate() {
            match replace(&text, change) {
                Ok(changed) => text = changed,
                Err(why) => {
                    return ToolAnswer::bad(format!(
                        "`{path}` was left as it is: change {} of {} does not fit, {why}",
                        number + 1,
                        changes.len()
                    ));
                }
            }
        }
        match self.workspace.write(path, &text) {
            Ok(()) => ToolAnswer::good(format!("changed `{path}`, {} places", changes.len())),
            Err(refused) => ToolAnswer::bad(refused.to_string()),
        }
    }

    pub(super) fn glob(&mut self, pattern: &str) -> ToolAnswer {
        let pattern = quoted(pattern);
        let listed = self.shell.ask(
            &self.workspace,
            &format!(
                "(cd \"$WORK\" && bash -O globstar -c 'compgen -G \"$1\" | sort' _ {pattern})"
            ),
        );
        match listed {
            Ok(text) if text.trim().is_empty() => ToolAnswer::good("no file matches"),
            Ok(text) => ToolAnswer::good(text),
            Err(answer) => answer,
        }
    }

    pub(super) fn grep(&mut self, args: &Grep) -> ToolAnswer {
        let (pattern, path) = (
            quoted(&args.pattern),
            quoted(args.path.as_deref().unwrap_or(".")),
        );
        let found = self.shell.ask(
            &self.workspace,
            &format!(
                "(cd \"$WORK\" && grep -rnIE --exclude-dir=.shell -e {pattern} -- {path} | head -n 200)"
            ),
        );
        match found {
            Ok(text) if text.trim().is_empty() => ToolAnswer::good("nothing found"),
            Ok(text) => ToolAnswer::good(text),
            Err(answer) => answer,
        }
    }
}

fn replace(text: &str, change: &Change) -> Result<String, String> {
    if change.old.is_empty() {
        return Err("`old` is empty".to_owned());
    }
    match text.matches(&change.old).count() {
        0 => Err("`old` is not in the file".to_owned()),
        1 => Ok(text.replacen(&change.old, &change.new, 1)),
        _ if change.all => Ok(text.replace(&change.old, &change.new)),
        count => Err(format!(
            "`old` is there {count} times; give more of its surroundings, or set `all`"
        )),
    }
}

/// As one word of the shell, whatever is in it.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(old: &str, new: &str, all: bool) -> Change {
        Change {
            old: old.to_owned(),
            new: new.to_owned(),
            all,
        }
    }

    #[test]
    fn a_replacement_fits_once_or_says_why_not() {
        assert_eq!(replace("a b", &change("a", "c", false)).unwrap(), "c b");
        assert_eq!(replace("a a", &change("a", "c", true)).unwrap(), "c c");
        for (text, wrong) in [
            ("a a", change("a", "c", false)),
            ("a", change("b", "c", true)),
            ("a", change("", "c", false)),
        ] {
            assert!(replace(text, &wrong).is_err(), "{text}");
        }
    }

    #[test]
    fn quotes_within_a_word_stay_in_it() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
