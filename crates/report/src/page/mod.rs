//! What pages are made of. Everything that is put in as text is escaped: much of it was written by whoever is being judged.
//!
//! A page stands alone. It has no script and loads nothing, and its policy lets no browser do either, should an escape ever
//! be missing.

mod code;
mod diff;
mod words;

use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use code::{CodeNote, annotated_code, code};
pub use diff::{DiffLine, LineDiff, line_diff};
pub use words::{UNKNOWN, anchor, count, duration, fact, percent, runtime, times};

const STYLE: &str = include_str!("style.css");
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// A part of a page that is linked at its top.
pub struct Section {
    /// Also the anchor.
    pub title: &'static str,
    pub body: Markup,
}

/// The whole of a page that stands alone.
pub fn page(title: &str, lead: &Markup, sections: &[Section]) -> Markup {
    let head = html! { meta http-equiv="Content-Security-Policy" content=(POLICY); };
    let header = html! {
        h1 { (title) }
        (lead)
        nav aria-label="Sections" {
            ul {
                @for section in sections {
                    li { a href={ "#" (anchor(section.title)) } { (section.title) } }
                }
            }
        }
    };
    let content = html! {
        @for section in sections {
            section id=(anchor(section.title)) aria-labelledby={ (anchor(section.title)) "-title" } {
                h2 id={ (anchor(section.title)) "-title" } { (section.title) }
                (section.body)
            }
        }
    };
    document(title, &head, &header, &content)
}

/// What every page has around it.
pub fn document(title: &str, head: &Markup, header: &Markup, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                (head)
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header { (header) }
                main id="content" { (content) }
            }
        }
    }
}

/// Something wide: it scrolls by itself, with the keyboard too, and the page does not.
pub fn scrolling(label: &str, body: &Markup) -> Markup {
    html! { div.scroll role="region" aria-label=(label) tabindex="0" { (body) } }
}

/// A column of a table.
pub struct Column<'a> {
    pub name: &'a str,
    /// Read rather than compared.
    pub words: bool,
}

/// A table whose first column names the rows.
pub fn table(caption: &str, columns: &[Column<'_>], rows: &[Vec<Markup>]) -> Markup {
    let class = |column: &Column<'_>| column.words.then_some("words");
    let body = html! {
        table {
            caption { (caption) }
            thead { tr { @for column in columns { th scope="col" class=[class(column)] { (column.name) } } } }
            tbody {
                @for row in rows {
                    tr {
                        @for (number, (cell, column)) in row.iter().zip(columns).enumerate() {
                            @if number == 0 { th scope="row" { (cell) } } @else { td class=[class(column)] data-label=(column.name) { (cell) } }
                        }
                    }
                }
            }
        }
    };
    html! { div.cards { (scrolling(&format!("table: {caption}"), &body)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_become_part_of_the_page() {
        let hostile = "<script>alert('x')</script>\" onload=\"";
        let column = Column {
            name: hostile,
            words: true,
        };
        let sections = [Section {
            title: "A part",
            body: table(hostile, &[column], &[vec![html! { (hostile) }]]),
        }];
        let page = page(hostile, &html! { p { (hostile) } }, &sections).into_string();
        assert!(!page.contains("<script"), "{page}");
        assert!(!page.contains("\" onload"), "{page}");
        assert!(page.contains("&lt;script&gt;"));
        assert!(page.contains("href=\"#a-part\"") && page.contains("<section id=\"a-part\""));
        // Nothing to load, from anywhere.
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
