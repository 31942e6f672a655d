//! Keys combined from several: tuples, and boxed extractors in a vector.

use super::{KeyError, KeyExtractor};
use crate::http::head::RequestHead;
use crate::values::PartitionKey;

/// Keys by the combination of the parts. Each part carries its length, so that no two combinations are the same bytes.
macro_rules! tuple {
    ($($part:ident . $index:tt),+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
                Ok(PartitionKey::from_parts([$(self.$index.extract(head)?.as_bytes()),+]))
            }

            fn is_shared(&self) -> bool {
                $(self.$index.is_shared())&&+
            }
        }
    };
}

tuple!(A.0, B.1);
tuple!(A.0, B.1, C.2);
tuple!(A.0, B.1, C.2, D.3);

/// Keys by a combination whose length is known only at run time.
impl KeyExtractor for Vec<Box<dyn KeyExtractor>> {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        let parts = self.iter().map(|part| part.extract(head)).collect::<Result<Vec<_>, _>>()?;
        Ok(PartitionKey::from_parts(parts.iter().map(PartitionKey::as_bytes)))
    }

    fn is_shared(&self) -> bool {
        self.iter().all(KeyExtractor::is_shared)
    }
}
