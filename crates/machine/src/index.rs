//! Finding one named file in a Python package index (the "simple" API, JSON or HTML).
//!
//! Only the address is taken from the index: the file and its hash are given.

use std::env;

use serde::Deserialize;
use ureq::Agent;

const PYPI: &str = "https://pypi.org/simple";
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.5";
/// The largest listing we read; that of `uv` is about 4 MB.
const LISTING_LIMIT: u64 = 64 << 20;

/// The index that the user's other tools use, so that a company's mirror is used here too.
pub(crate) fn index_url() -> String {
    configured().unwrap_or_else(|| PYPI.to_owned())
}

pub(crate) fn configured() -> Option<String> {
    ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"]
        .iter()
        .find_map(|name| {
            let value = env::var(name).ok()?;
            // uv lets an index carry a name: `name=https://…`.
            let start = value.find("http://").or_else(|| value.find("https://"))?;
            Some(value[start..].trim_end_matches('/').to_owned())
        })
}

#[derive(Deserialize)]
struct Listing {
    files: Vec<ListedFile>,
}

#[derive(Deserialize)]
struct ListedFile {
    filename: String,
    url: String,
}

/// The address of a file of a package.
pub(crate) fn locate(
    agent: &Agent,
    index: &str,
    package: &str,
    file: &str,
) -> Result<String, String> {
    let page = format!("{}/{package}/", index.trim_end_matches('/'));
    let mut response = agent
        .get(&page)
        .header("accept", ACCEPT)
        .call()
        .map_err(|error| error.to_string())?;
    if !response.status().is_success() {
        return Err(format!("{page} answered {}", response.status()));
    }
    let text = response
        .body_mut()
        .with_config()
        .limit(LISTING_LIMIT)
        .read_to_string()
        .map_err(|error| error.to_string())?;
    let found = match serde_json::from_str::<Listing>(&text) {
        Ok(listing) => listing
            .files
            .into_iter()
            .find(|listed| listed.filename == file)
            .map(|listed| listed.url),
        Err(_) => in_html(&text, file),
    };
    let address = found.ok_or_else(|| format!("{page} does not list `{file}`"))?;
    Ok(resolve(&page, &address))
}

/// The address of the link whose last segment is the file. Mirrors often serve only HTML.
fn in_html(text: &str, file: &str) -> Option<String> {
    text.split("href=").skip(1).find_map(|rest| {
        let quote = rest
            .chars()
            .next()
            .filter(|&quote| quote == '"' || quote == '\'')?;
        let address = rest[1..].split(quote).next()?.replace("&amp;", "&");
        let address = address.split('#').next()?.to_owned();
        let path = address.split('?').next()?;
        (path.rsplit('/').next()?.replace("%2B", "+") == file).then_some(address)
    })
}

/// The absolute form of an address on a page: it may be absolute, relative to the host, or relative to the page.
fn resolve(page: &str, address: &str) -> String {
    if address.contains("://") {
        return address.to_owned();
    }
    let (scheme, rest) = page.split_once("://").unwrap_or(("https", page));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if let Some(absolute) = address.strip_prefix('/') {
        return format!("{scheme}://{host}/{absolute}");
    }
    let mut segments: Vec<&str> = path.split('/').collect();
    segments.pop();
    for segment in address.split('/') {
        match segment {
            ".." => {
                segments.pop();
            }
            "." => {}
            _ => segments.push(segment),
        }
    }
    format!("{scheme}://{host}/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_by_file_name() {
        let page = "<a href=\"https://f/x/uv-1.tar.gz#sha256=ab\">uv-1.tar.gz</a><br/>\
                    <a data-x='1' href='../../f/uv-1.whl?a=1&amp;b=2#sha256=cd'>uv-1.whl</a>";
        assert_eq!(
            in_html(page, "uv-1.whl").unwrap(),
            "../../f/uv-1.whl?a=1&b=2"
        );
        assert_eq!(
            in_html(page, "uv-1.tar.gz").unwrap(),
            "https://f/x/uv-1.tar.gz"
        );
        assert_eq!(in_html(page, "uv-2.whl"), None);
    }

    #[test]
    fn addresses_are_resolved_against_the_page() {
        let page = "https://mirror.example/pypi/simple/uv/";
        assert_eq!(
            resolve(page, "../../f/uv.whl"),
            "https://mirror.example/pypi/f/uv.whl"
        );
        assert_eq!(
            resolve(page, "uv.whl"),
            "https://mirror.example/pypi/simple/uv/uv.whl"
        );
        assert_eq!(
            resolve(page, "/f/uv.whl"),
            "https://mirror.example/f/uv.whl"
        );
        assert_eq!(resolve(page, "http://other/uv.whl"), "http://other/uv.whl");
    }
}
