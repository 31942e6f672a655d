//! The examples in the guide.

use std::fs;
use std::path::Path;

use tower_sluice::key::{Global, KeyExtractor};

use crate::reader;

/// Returns a page's TOML blocks that have a route, and so are whole files.
fn files(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("[[route]]")).map(str::to_owned).collect()
}

/// The keys that the program `sluice` adds to the format.
fn descriptor(_policy: &str, names: &[String]) -> Option<Result<Box<dyn KeyExtractor>, String>> {
    names.iter().all(|name| name.starts_with("descriptor:")).then(|| Ok(Box::new(Global) as _))
}

#[test]
fn each_file_in_the_guide_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let pages = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let page = path.file_name().unwrap().to_string_lossy().into_owned();
        for file in files(&fs::read_to_string(&path).unwrap()) {
            count += 1;
            let parsed = reader().keys(descriptor).parse(&page, &file);
            assert!(parsed.is_ok(), "{}\n{file}", parsed.unwrap_err());
        }
    }
    assert!(count > 5, "{count} files were found");
}
