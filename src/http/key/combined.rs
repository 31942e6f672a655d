//! Keys combined from several: tuples, and boxed extractors in a vector.

use smallvec::SmallVec;

use super::{KeyError, KeyExtractor};
use crate::engine::key::text::{self, KeyTextError, SEPARATOR};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by the combination of the parts. Each part carries its length, so that no two combinations are the same bytes.
macro_rules! tuple {
    ($($part:ident . $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
                Ok(PartitionKey::from_parts([$(self.$index.extract(head)?.as_bytes()),+]))
            }

            /// Whether all parts are shared: a part that differs from client to client makes the combination differ.
            fn is_shared(&self) -> bool {
                $(self.$index.is_shared())&&+
            }

            fn identity(&self) -> Option<String> {
                identity_of_parts([$(self.$index.identity()),+])
            }

            fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
                read_parts(&[$(&self.$index),+], text)
            }

            fn write_text(&self, key: &PartitionKey) -> Option<String> {
                write_parts(&[$(&self.$index),+], key)
            }
        }
    };
}

tuple!(A.0, B.1);
tuple!(A.0, B.1, C.2);
tuple!(A.0, B.1, C.2, D.3);

/// Keys by a combination whose length is known only at run time. The keys equal the keys of a tuple of the same parts.
///
/// All requests have the same key if the vector is empty, as with [`Global`](super::Global).
impl KeyExtractor for Vec<Box<dyn KeyExtractor>> {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        // The length of the longest tuple.
        let parts = self.iter().map(|part| part.extract(head)).collect::<Result<SmallVec<[_; 4]>, _>>()?;
        Ok(PartitionKey::from_parts(parts.iter().map(PartitionKey::as_bytes)))
    }

    /// Whether all parts are shared, as for a tuple. An empty vector is.
    fn is_shared(&self) -> bool {
        self.iter().all(KeyExtractor::is_shared)
    }

    fn identity(&self) -> Option<String> {
        identity_of_parts(self.iter().map(KeyExtractor::identity))
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        read_parts(&self.iter().map(|part| &**part).collect::<Vec<_>>(), text)
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        write_parts(&self.iter().map(|part| &**part).collect::<Vec<_>>(), key)
    }
}

/// The identity of a combination, if all parts have one.
fn identity_of_parts(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    // The debug form quotes each part, so no other parts have the same text.
    Some(format!("{:?}", parts.into_iter().collect::<Option<Vec<_>>>()?))
}

/// Reads a text with a part for each extractor.
fn read_parts(extractors: &[&dyn KeyExtractor], text: &str) -> Result<PartitionKey, KeyTextError> {
    // A combination within another one stands in quotation marks.
    let whole = text::unquoted_text(text).filter(|_| extractors.len() > 1);
    let texts = text::parts(whole.as_deref().unwrap_or(text));
    if extractors.is_empty() {
        return text::read_shared(text);
    }
    let keys = extractors.iter().zip(&texts).map(|(extractor, text)| text::key_of_text(*extractor, text));
    match keys.collect::<Result<Vec<_>, _>>() {
        Ok(keys) if texts.len() == extractors.len() => {
            Ok(PartitionKey::from_parts(keys.iter().map(PartitionKey::as_bytes)))
        }
        _ => Err(KeyTextError::new(expected_parts(extractors))),
    }
}

/// Describes the parts. An extractor describes its keys only in an error, so we ask each for a key from no text.
fn expected_parts(extractors: &[&dyn KeyExtractor]) -> String {
    let expected = |extractor: &&dyn KeyExtractor| match extractor.read_text("") {
        Ok(_) => text::SHARED.to_owned(),
        Err(error) => error.expected().to_owned(),
    };
    let parts: Vec<_> = extractors.iter().map(expected).map(|part| format!("<{part}>")).collect();
    parts.join(SEPARATOR)
}

fn write_parts(extractors: &[&dyn KeyExtractor], key: &PartitionKey) -> Option<String> {
    if extractors.is_empty() {
        return text::write_shared(key);
    }
    let keys = text::split(key, extractors.len())?;
    let texts = extractors.iter().zip(&keys).map(|(extractor, key)| {
        let text = text::text_of(*extractor, key);
        // The text of a combination, within this one.
        let is_one = text::parts(&text).len() == 1;
        if is_one { text } else { text::quoted(text.as_bytes()) }
    });
    Some(texts.collect::<Vec<_>>().join(SEPARATOR))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::http::key::{Global, HeaderKey};

    const A: HeaderKey = HeaderKey::from_static("a");
    const B: HeaderKey = HeaderKey::from_static("b");

    fn key(extractor: &impl KeyExtractor, [a, b]: [&str; 2]) -> PartitionKey {
        let request = Request::builder().header("a", a).header("b", b).body(()).unwrap();
        extractor.extract(&RequestHead::from(&request)).unwrap()
    }

    #[test]
    fn combinations_differ_unless_all_parts_agree() {
        let tuple = (A, B);
        let list: Vec<Box<dyn KeyExtractor>> = vec![Box::new(A), Box::new(B)];
        let values = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab", "ab"]];
        for (index, value) in values.into_iter().enumerate() {
            assert_eq!(key(&tuple, value), key(&list, value), "{value:?}");
            for other in &values[..index] {
                assert_ne!(key(&tuple, value), key(&tuple, *other), "{value:?} and {other:?}");
            }
        }
    }

    #[test]
    fn a_combination_needs_all_parts() {
        let request = Request::builder().header("a", "1").body(()).unwrap();
        let head = RequestHead::from(&request);
        let list: Vec<Box<dyn KeyExtractor>> = vec![Box::new(A), Box::new(B)];
        let missing = B.extract(&head);
        assert!(missing.is_err());
        assert_eq!((A, B).extract(&head), missing);
        assert_eq!(list.extract(&head), missing);
    }

    #[test]
    fn a_combination_of_shared_parts_is_shared() {
        let list = |parts: Vec<Box<dyn KeyExtractor>>| parts;
        assert!(!(Global, A).is_shared() && !list(vec![Box::new(Global), Box::new(A)]).is_shared());
        assert!((Global, Global).is_shared() && list(vec![Box::new(Global)]).is_shared());
    }

    #[test]
    fn an_empty_vector_keys_as_global_does() {
        let none: Vec<Box<dyn KeyExtractor>> = Vec::new();
        assert_eq!(key(&none, ["1", "2"]), PartitionKey::SHARED);
        assert!(none.is_shared());
    }
}
