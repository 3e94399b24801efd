//! A table on a terminal: columns as wide as they must be, words left, numbers right.

use warpsmith_report::{Cell, Table};

pub(super) fn text(table: &Table) -> String {
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(told).collect())
        .collect();
    let all = || std::iter::once(&table.head).chain(&rows);
    let columns = all().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        all()
            .filter_map(|row| row.get(column))
            .map(|cell| letters(cell))
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = format!("{}\n", table.title);
    for row in all() {
        let mut line = String::from("  ");
        for (column, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[column] - letters(cell));
            if column > 0 {
                line.push_str("  ");
            }
            if table.is_words(column) {
                line.extend([cell.as_str(), &space]);
            } else {
                line.extend([space.as_str(), cell]);
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn told(cell: &Cell) -> String {
    match &cell.range {
        Some(range) => format!("{} ({range})", cell.text),
        None => cell.text.clone(),
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_and_numbers_right() {
        let ranged = Cell {
            text: "67 %".to_owned(),
            range: Some("33 % to 100 %".to_owned()),
        };
        let table = Table {
            title: "Title".to_owned(),
            head: ["", "a", "long name"].map(str::to_owned).into(),
            rows: vec![
                vec!["correct".into(), ranged, "–".into()],
                vec!["x".into(), "1".into(), "two".into()],
            ],
        };
        let expected = [
            "Title",
            "                              a  long name",
            "  correct  67 % (33 % to 100 %)  –",
            "  x                           1  two",
            "",
        ];
        assert_eq!(text(&table), expected.join("\n"));
    }
}
