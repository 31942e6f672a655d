//! `priority` and `weight`: a request's class and its key's weight, by a request's key.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use toml::Spanned;

use super::error::ConfigError;
use super::format::{NamedValue, OneOrMany, RawPriority, RawWeight};
use super::key::KeySpec;
use super::source::SourceText;
use super::value::{number, number_in};
use tower_sluice::PartitionKey;
use tower_sluice::RequestHead;
use tower_sluice::key::{ClientIp, KeyExtractor, key_of_text};
use tower_sluice::limiter::Priority;

/// Parses `priority`: a function that finds a request's class.
pub(crate) fn priority(
    source: &SourceText<'_>,
    raw: &RawPriority,
    client_ip: &ClientIp,
) -> Result<impl Fn(&RequestHead<'_>) -> Priority + Send + Sync + 'static, ConfigError> {
    let RawPriority { by, classes, default } = raw;
    let table = KeyTable::read(source, by, "classes", classes, client_ip, |_, class| Ok(class.value()))?;
    let default = default.map(NamedValue::value).unwrap_or_default();
    Ok(move |head: &RequestHead<'_>| table.find(head).unwrap_or(default))
}

/// Parses `weight`: a function that finds the weight of a request's key.
pub(crate) fn weight(
    source: &SourceText<'_>,
    raw: &RawWeight,
    client_ip: &ClientIp,
) -> Result<impl Fn(&RequestHead<'_>) -> NonZeroU32 + Send + Sync + 'static, ConfigError> {
    let RawWeight { by, weights, default } = raw;
    let as_weight = |number: u64| NonZeroU32::new(u32::try_from(number).expect("in the range")).expect("in the range");
    let table = KeyTable::read(source, by, "weights", weights, client_ip, |_, weight| {
        Ok(as_weight(number_in(source, "weights", 1..=u32::MAX.into(), weight)?))
    })?;
    let default = default.as_ref().map(|weight| number(source, "weight.default", weight)).transpose()?;
    let default = default.map_or(NonZeroU32::MIN, as_weight);
    Ok(move |head: &RequestHead<'_>| table.find(head).unwrap_or(default))
}

/// Values by a request's key, which is read as in a policy's `key`.
pub(crate) struct KeyTable<T> {
    by: Box<dyn KeyExtractor>,
    values: HashMap<PartitionKey, T>,
}

impl<T: Clone> KeyTable<T> {
    /// `value_of` reads a name's value.
    pub(crate) fn read<R>(
        source: &SourceText<'_>,
        by: &Spanned<OneOrMany>,
        field: &str,
        values: &Spanned<BTreeMap<String, R>>,
        client_ip: &ClientIp,
        value_of: impl Fn(&str, &R) -> Result<T, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let spec = KeySpec::parse(by.get_ref().as_slice()).map_err(|problem| source.error(&by.span(), problem))?;
        let by_key = spec.extractor(client_ip);
        if spec.is_global() {
            let problem = "by = \"global\" is the same for all requests; write header:NAME, user, path or client-ip";
            return Err(source.error(&by.span(), problem));
        }
        if values.get_ref().is_empty() {
            let problem = format!("{field} = {{}} has no entry; write one, or leave the option out");
            return Err(source.error(&values.span(), problem));
        }
        let mut table = HashMap::new();
        for (name, value) in values.get_ref() {
            let key = key_of_text(&*by_key, name)
                .map_err(|error| source.error(&values.span(), format_args!("{field}: {name:?}: {error}")))?;
            table.insert(key, value_of(name, value)?);
        }
        Ok(Self { by: by_key, values: table })
    }

    /// Returns the value for a request's key, if the request has a key that is listed.
    pub(crate) fn find(&self, head: &RequestHead<'_>) -> Option<T> {
        self.values.get(&self.by.extract(head).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::Config;
    use tower_sluice::key::User;

    /// Reads a value with these members, and applies it to requests with this plan, user and path.
    fn read<R: serde::de::DeserializeOwned>(members: &str) -> R {
        toml::from_str(members).unwrap()
    }

    fn request(plan: &[&str], user: &str) -> Request<()> {
        let mut request = Request::get("/pay?x=1");
        for plan in plan {
            request = request.header("x-plan", *plan);
        }
        let mut request = request.body(()).unwrap();
        request.extensions_mut().insert(User::new(user));
        request
    }

    #[test]
    fn keys_have_their_class() {
        let source = SourceText::new("f.toml", "");
        let by_plan: RawPriority =
            read("by = \"header:x-plan\"\ndefault = \"low\"\nclasses = { gold = \"high\", free = \"normal\" }");
        let by_plan = priority(&source, &by_plan, &ClientIp::peer()).unwrap();
        for (plan, class) in [
            (&["gold"][..], Priority::High),
            (&["free"], Priority::Normal),
            // Not listed, missing, or ambiguous: a client cannot add another class to the class that a proxy sets.
            (&["Gold"], Priority::Low),
            (&[], Priority::Low),
            (&["free", "gold"], Priority::Low),
        ] {
            assert_eq!(by_plan(&RequestHead::from(&request(plan, "alice"))), class, "{plan:?}");
        }
        let both: RawPriority =
            read("by = [\"header:x-plan\", \"user\"]\nclasses = { \"gold + alice\" = \"critical\" }");
        let both = priority(&source, &both, &ClientIp::peer()).unwrap();
        assert_eq!(both(&RequestHead::from(&request(&["gold"], "alice"))), Priority::Critical);
        assert_eq!(both(&RequestHead::from(&request(&["gold"], "bob"))), Priority::Normal);
    }

    /// All clients share a path's key, and each path has a different one.
    #[test]
    fn a_path_has_a_class() {
        let source = SourceText::new("f.toml", "");
        let by = |by: &str| read::<RawPriority>(&format!("by = {by}\nclasses = {{ \"/pay\" = \"critical\" }}"));
        assert!(priority(&source, &by("\"path\""), &ClientIp::peer()).is_ok());
        assert!(priority(&source, &by("[\"global\", \"global\"]"), &ClientIp::peer()).is_err());
    }

    #[test]
    fn keys_have_their_weight() {
        let source = SourceText::new("f.toml", "");
        let by_user: RawWeight = read("by = \"user\"\nweights = { alice = 10 }\ndefault = 2");
        let by_user = weight(&source, &by_user, &ClientIp::peer()).unwrap();
        let of = |user| by_user(&RequestHead::from(&request(&[], user))).get();
        assert_eq!([of("alice"), of("bob")], [10, 2]);
    }

    /// A file's classes are replaced with the file.
    #[test]
    fn edits_change_classes_and_limits() {
        let file = |class: &str, most: u64| {
            format!(
                "[[route]]\npath = \"/a\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"overload\"\nlimits = [4, {most}]\n\
                 priority = {{ by = \"header:x-plan\", classes = {{ gold = \"{class}\" }} }}\n"
            )
        };
        let mut config = Config::parse("f.toml", &file("high", 100)).unwrap();
        config.change("f.toml", &file("critical", 200)).unwrap();
        assert!(config.change("f.toml", &file("top", 200)).is_err());
    }
}
