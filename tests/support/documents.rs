//! The examples in the documents.

use std::fs;

use crate::checkout;

/// The blocks in a document that begin with this, in their order: `sql`, or with a word behind it, by which a test
/// finds those that need more than one server or session.
pub fn blocks(document: &str, kind: &str) -> Vec<String> {
    let text = fs::read_to_string(checkout().join(document)).unwrap();
    text.split(&format!("```{kind}\n"))
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}
