//! What all pages have around them.

use maud::{Markup, html};

use warpsmith_report::page::{Column, document};

/// One script of our own and nothing from anywhere else, should an escape ever be missing.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

const PLACES: [(&str, &str); 3] = [
    ("/", "Runs"),
    ("/leaderboard", "Leaderboard"),
    ("/machine", "Machine"),
];

/// `here` is the address of the place that this page is, where it is one.
pub(super) fn page(title: &str, here: Option<&str>, body: &Markup) -> Markup {
    let head = html! { script src="/live.js" defer {} };
    let header = html! {
        nav aria-label="Places" {
            ul {
                @for (address, name) in PLACES {
                    @let current = (here == Some(address)).then_some("page");
                    li { a href=(address) aria-current=[current] { (name) } }
                }
            }
        }
        h1 { (title) }
    };
    document(&format!("{title} · Warpsmith"), &head, &header, body)
}

/// A part that is replaced when it changes.
pub(super) fn live(id: &str, body: &Markup) -> Markup {
    html! { div id=(id) data-live { (body) } }
}

/// Columns by name; those of words stand to the left.
pub(super) fn columns<'a>(names: &[&'a str], words: &[&str]) -> Vec<Column<'a>> {
    let column = |name: &&'a str| Column {
        name,
        words: words.contains(name),
    };
    names.iter().map(column).collect()
}

/// A text as part of an address.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte as char);
        } else {
            // Writing to a text does not fail.
            let _ = std::fmt::Write::write_fmt(&mut encoded, format_args!("%{byte:02X}"));
        }
    }
    encoded
}
