//! Merges our fields with fields that an inner service or layer has set, so that no limit looks larger than it is.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{RATELIMIT, RATELIMIT_POLICY, decimal};
use crate::http::head::set_field;
use crate::http::text::string_end;

/// Whether a field with one number of remaining units is set and must stay, because it has at most `left`, or cannot be
/// read.
pub(super) fn is_stricter(headers: &HeaderMap, name: &HeaderName, left: u64) -> bool {
    let mut lines = headers.get_all(name).iter();
    lines.any(|line| remaining_in(line.as_bytes()).is_none_or(|there| there <= left))
}

/// Parses an Integer, or draft-07's `remaining`.
fn remaining_in(value: &[u8]) -> Option<u64> {
    let mut members = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let number = members.find_map(|member| member.strip_prefix(b"remaining="));
    decimal::parse(number.unwrap_or(value.trim_ascii()))
}

/// Merges draft-11's fields with fields that are set. `state` is `None` if only the policies are advertised.
///
/// Members with other names stay, and ours follow. If two members have one name, the one with less left stays, in both
/// fields. Theirs stays if it cannot be read, and ours if only ours reports the remaining units. Fields in another
/// syntax, such as draft-07, cannot share a list with ours. If they can be read and advertise more than all ours, ours
/// replace them. Otherwise, ours are left out.
#[cold]
pub(super) fn merge_draft11(headers: &mut HeaderMap, policy: &HeaderValue, state: Option<&HeaderValue>) {
    let ours = Lists {
        states: state.and_then(|state| members(state.as_bytes())).unwrap_or_default(),
        policies: members(policy.as_bytes()).unwrap_or_default(),
    };
    let their_states = lines(headers, &RATELIMIT);
    let their_policies = lines(headers, &RATELIMIT_POLICY);
    let merged = match (members(&their_states), members(&their_policies)) {
        (Some(states), Some(policies)) => Lists { states, policies }.merged_with(ours),
        _ if ours.may_replace_another_syntax(headers) => ours,
        _ => return,
    };
    if state.is_some() {
        set_list(headers, RATELIMIT, &merged.states);
    }
    set_list(headers, RATELIMIT_POLICY, &merged.policies);
}

/// The members in `RateLimit` and `RateLimit-Policy`.
struct Lists<'a> {
    states: Vec<MergedMember<'a>>,
    policies: Vec<MergedMember<'a>>,
}

impl<'a> Lists<'a> {
    /// Adds the members from `ours`, each name once.
    fn merged_with(mut self, ours: Self) -> Self {
        let find = |members: &[MergedMember<'_>], name| members.iter().position(|member| member.name == name);
        // The names whose state is ours, and whose policy is ours, too.
        let mut taken = Vec::new();
        for state in ours.states {
            match find(&self.states, state.name) {
                None => self.states.push(state),
                Some(at) if self.states[at].left() > state.left() => self.states[at] = state,
                Some(_) => continue,
            }
            taken.push(state.name);
        }
        for policy in ours.policies {
            match find(&self.policies, policy.name) {
                None => self.policies.push(policy),
                Some(at) if taken.contains(&policy.name) => self.policies[at] = policy,
                Some(_) => {}
            }
        }
        self
    }

    /// Whether the response has a `RateLimit` in another syntax that advertises more than all these.
    fn may_replace_another_syntax(&self, headers: &HeaderMap) -> bool {
        let least = self.states.iter().filter_map(MergedMember::left).min();
        headers.contains_key(RATELIMIT) && least.is_some_and(|least| !is_stricter(headers, &RATELIMIT, least))
    }
}

fn set_list(headers: &mut HeaderMap, name: HeaderName, members: &[MergedMember<'_>]) {
    let members: Vec<_> = members.iter().map(|member| [member.name, member.parameters].concat()).collect();
    // Each byte is allowed in a field value.
    if let Ok(value) = HeaderValue::from_bytes(&members.join(b", ".as_slice())) {
        set_field(headers, name, value);
    }
}

/// A list member: a String, with parameters (RFC 9651, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MergedMember<'a> {
    /// With its quotation marks.
    name: &'a [u8],
    parameters: &'a [u8],
}

impl MergedMember<'_> {
    /// The parameter `r`, if it can be read. If there are several, the last one counts (RFC 9651, section 4.2.3.2).
    fn left(&self) -> Option<u64> {
        let (mut left, mut rest) = (None, self.parameters);
        while let [b';', after @ ..] = rest {
            let (parameter, unseen) = after.split_at(end_before(b';', after)?);
            if let Some(number) = parameter.trim_ascii().strip_prefix(b"r=") {
                left = decimal::parse(number);
            }
            rest = unseen;
        }
        left
    }
}

/// Parses a list's members. `None` if a member is not a String with parameters.
fn members(list: &[u8]) -> Option<Vec<MergedMember<'_>>> {
    let mut members = Vec::new();
    let mut rest = list;
    loop {
        rest = rest.trim_ascii_start();
        match rest {
            [] => return Some(members),
            [b',', after @ ..] => rest = after,
            _ => {
                let (name, after) = rest.split_at(string_end(rest)?);
                let (parameters, after) = after.split_at(end_before(b',', after)?);
                let parameters = parameters.trim_ascii_end();
                if !matches!(parameters, [] | [b';', ..]) {
                    return None;
                }
                members.push(MergedMember { name, parameters });
                rest = after;
            }
        }
    }
}

/// Returns the length of `text` up to the first `stop` outside Strings, or up to its end. `None` if a String does not
/// end.
fn end_before(stop: u8, text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at) {
            None => return Some(at),
            Some(byte) if *byte == stop => return Some(at),
            Some(b'"') => at += string_end(&text[at..])?,
            Some(_) => at += 1,
        }
    }
}

/// Joins all lines in a field (RFC 9110, section 5.3).
fn lines(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let lines: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    lines.join(&b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two fields after a merge, with `|` between their lines.
    fn after(
        states: &[&'static str],
        policies: &[&'static str],
        state: &'static str,
        policy: &'static str,
    ) -> [String; 2] {
        let mut headers = HeaderMap::new();
        for (name, lines) in [(RATELIMIT, states), (RATELIMIT_POLICY, policies)] {
            for line in lines {
                headers.append(&name, HeaderValue::from_static(line));
            }
        }
        let state = Some(HeaderValue::from_static(state)).filter(|state| !state.is_empty());
        merge_draft11(&mut headers, &HeaderValue::from_static(policy), state.as_ref());
        [RATELIMIT, RATELIMIT_POLICY].map(|name| {
            let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
            lines.join("|")
        })
    }

    #[test]
    fn existing_members_stay_and_come_first() {
        let merged = |lines: &[&'static str], ours| after(lines, &[], ours, "\"a\";q=9;w=1")[0].clone();
        assert_eq!(merged(&[], "\"a\";r=1"), "\"a\";r=1");
        assert_eq!(merged(&["\"b\";r=0;t=5"], "\"a\";r=1"), "\"b\";r=0;t=5, \"a\";r=1");
        let lines = ["\"b\";r=0", "\"c\";r=2,\"d\"; r=3"];
        assert_eq!(merged(&lines, "\"a\";r=1, \"e\";r=9"), "\"b\";r=0, \"c\";r=2, \"d\"; r=3, \"a\";r=1, \"e\";r=9");
        assert_eq!(merged(&["", "\"b\";r=0, ,"], "\"a\";r=1"), "\"b\";r=0, \"a\";r=1");
        assert_eq!(merged(&["\"a, \\\"b\";r=0;x=\"\\\",\""], "\"a\";r=1"), "\"a, \\\"b\";r=0;x=\"\\\",\", \"a\";r=1");
        assert_eq!(after(&["\"b\";r=0", "\"c\";r=1"], &[], "", "\"a\";q=9"), ["\"b\";r=0|\"c\";r=1", "\"a\";q=9"]);
    }

    #[test]
    fn the_tighter_member_stays_per_name() {
        let (theirs, ours) = (["\"a\";q=1;w=60"], "\"a\";q=9;w=60");
        assert_eq!(after(&["\"a\";r=3;t=7"], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=3;t=7", "\"a\";q=1;w=60"]);
        assert_eq!(after(&["\"a\";r=4;t=7"], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=4;t=7", "\"a\";q=1;w=60"]);
        assert_eq!(after(&["\"a\";t=7;r=5"], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=4;t=8", "\"a\";q=9;w=60"]);
        // If there are several `r`, the last one counts. A comma within a String does not end a member.
        assert_eq!(after(&["\"a\";r=3;r=5"], &theirs, "\"a\";r=4", ours), ["\"a\";r=4", "\"a\";q=9;w=60"]);
        assert_eq!(after(&["\"a\";x=\";r=9;\";r=3"], &theirs, "\"a\";r=4", ours)[1], "\"a\";q=1;w=60");
        assert_eq!(after(&["\"a\""], &theirs, "\"a\";r=0", ours), ["\"a\"", "\"a\";q=1;w=60"]);
        assert_eq!(after(&[], &theirs, "", ours), ["", "\"a\";q=1;w=60"]);
        // Theirs does not report the remaining units.
        assert_eq!(after(&[], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=4;t=8", "\"a\";q=9;w=60"]);
        assert_eq!(
            after(&["\"b\";r=9, \"a\";r=5"], &["\"b\";q=9, \"a\";q=5"], "\"c\";r=1, \"a\";r=2", "\"c\";q=1, \"a\";q=2"),
            ["\"b\";r=9, \"a\";r=2, \"c\";r=1", "\"b\";q=9, \"a\";q=2, \"c\";q=1"]
        );
    }

    #[test]
    fn another_syntax_is_not_mixed_with_ours() {
        let (policies, policy) = (["100;w=60"], "\"a\";q=9;w=60");
        let drafts_07 = |state| after(&[state], &policies, "\"b\";r=6, \"a\";r=4;t=8", policy);
        for stays in
            ["limit=100, remaining=4, reset=5", "remaining=0", "limit=100", "many", "\"a\";r=1 x", "\"a", "a;r=1"]
        {
            assert_eq!(drafts_07(stays), [stays, "100;w=60"], "{stays}");
        }
        let replaced = ["\"b\";r=6, \"a\";r=4;t=8", "\"a\";q=9;w=60"];
        assert_eq!(drafts_07("limit=100, remaining=5, reset=5"), replaced);
        assert_eq!(
            after(&["limit=100", "remaining=5"], &policies, "\"a\";r=4", policy),
            ["limit=100|remaining=5", "100;w=60"]
        );
        assert_eq!(after(&[], &policies, "\"a\";r=4", policy), ["", "100;w=60"]);
        assert_eq!(after(&["limit=100, remaining=5"], &[], "", policy), ["limit=100, remaining=5", ""]);
    }

    #[test]
    fn members_that_are_not_ascii_stay() {
        let mut headers = HeaderMap::new();
        headers.insert(RATELIMIT, HeaderValue::from_bytes(b"\"\xff\";r=0").unwrap());
        merge_draft11(
            &mut headers,
            &HeaderValue::from_static("\"a\";q=1"),
            Some(&HeaderValue::from_static("\"a\";r=1")),
        );
        assert_eq!(headers[RATELIMIT].as_bytes(), b"\"\xff\";r=0, \"a\";r=1");
    }

    #[test]
    fn single_numbers_yield_to_smaller_ones() {
        let stays = |there: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in there {
                headers.append(RATELIMIT, HeaderValue::from_static(line));
            }
            is_stricter(&headers, &RATELIMIT, 5)
        };
        assert!(!stays(&[]) && !stays(&["6"]) && !stays(&["limit=9, remaining=6, reset=1"]));
        assert!(stays(&["5"]) && stays(&["0"]) && stays(&["limit=9, remaining=4, reset=1"]));
        assert!(stays(&["many"]) && stays(&["9", "3"]));
    }
}
