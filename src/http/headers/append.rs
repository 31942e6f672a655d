//! Appends draft-11's fields to a response, and merges them with those that an inner service or layer has set.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{RATELIMIT, RATELIMIT_POLICY, decimal};

/// Adds draft-11's fields to a response. `state` is `None` if only the policies are advertised.
///
/// Nearly always neither is set yet. Appending finds that out with one look-up per name; a look-up before an insertion
/// would take half as long again.
#[inline]
pub(super) fn append_draft11(headers: &mut HeaderMap, policy: HeaderValue, state: Option<HeaderValue>) {
    // If the map is full, the field is left out: that is no reason to fail a response.
    let was_set = |appended: Result<bool, _>| appended.unwrap_or(false);
    if was_set(headers.try_append(RATELIMIT_POLICY, policy)) {
        return merge_taken_back(headers, state.as_ref());
    }
    let Some(state) = state else {
        if headers.contains_key(RATELIMIT) {
            merge_taken_back(headers, None);
        }
        return;
    };
    if was_set(headers.try_append(RATELIMIT, state)) {
        let state = take_back(headers, &RATELIMIT);
        merge_taken_back(headers, state.as_ref());
    }
}

#[cold]
fn merge_taken_back(headers: &mut HeaderMap, state: Option<&HeaderValue>) {
    if let Some(policy) = take_back(headers, &RATELIMIT_POLICY) {
        merge_draft11(headers, &policy, state);
    }
}

/// Removes and returns the last line of a field.
#[cold]
fn take_back(headers: &mut HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let mut lines: Vec<_> = headers.get_all(name).iter().cloned().collect();
    let last = lines.pop();
    headers.remove(name);
    for line in lines {
        let _ = headers.try_append(name, line);
    }
    last
}

/// Merges draft-11's fields with those that are set. `state` is `None` if only the policies are advertised.
///
/// Members of other names stay, and ours follow. Of two members of one name, the one with less left stays, in both
/// fields: theirs if it cannot be read. Fields in another syntax, such as that of draft-07, cannot share a list with
/// ours: ours replace them if they can be read and advertise more than all of ours, and are left out otherwise. So no
/// limit looks larger than it is.
#[cold]
fn merge_draft11(headers: &mut HeaderMap, policy: &HeaderValue, state: Option<&HeaderValue>) {
    let (theirs, ours) =
        ([lines(headers, &RATELIMIT), lines(headers, &RATELIMIT_POLICY)], state.map(HeaderValue::as_bytes));
    let ours = [ours.unwrap_or_default(), policy.as_bytes()].map(|list| members(list).unwrap_or_default());
    let merged = match theirs.each_ref().map(|list| members(list)) {
        [Some(states), Some(policies)] => merged([states, policies], ours).map(|members| joined(&members)),
        _ => {
            let least = ours[0].iter().filter_map(Member::left).min().and_then(|least| u32::try_from(least).ok());
            if !least.is_some_and(|least| headers.contains_key(RATELIMIT) && !is_stricter(headers, &RATELIMIT, least)) {
                return;
            }
            ours.map(|members| joined(&members))
        }
    };
    for (name, list) in [RATELIMIT, RATELIMIT_POLICY].into_iter().zip(merged) {
        // If there is nothing to add, the lines stay as they are.
        let is_changed = state.is_some() || name == RATELIMIT_POLICY;
        if let Some(value) = HeaderValue::from_bytes(&list).ok().filter(|value| is_changed && !value.is_empty()) {
            let _ = headers.try_insert(name, value);
        }
    }
}

/// Merges states and policies, each name once.
fn merged<'a>(theirs: [Vec<Member<'a>>; 2], ours: [Vec<Member<'a>>; 2]) -> [Vec<Member<'a>>; 2] {
    let ([mut states, mut policies], [our_states, our_policies]) = (theirs, ours);
    let find = |members: &[Member<'_>], name| members.iter().position(|member| member.name == name);
    let mut is_tighter = Vec::new();
    for state in our_states {
        match find(&states, state.name) {
            None => states.push(state),
            Some(at) if states[at].left() > state.left() => {
                is_tighter.push(state.name);
                states[at] = state;
            }
            Some(_) => {}
        }
    }
    for policy in our_policies {
        match find(&policies, policy.name) {
            None => policies.push(policy),
            Some(at) if is_tighter.contains(&policy.name) => policies[at] = policy,
            Some(_) => {}
        }
    }
    [states, policies]
}

/// A member of a list: a String, with parameters (RFC 9651, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member<'a> {
    /// With its quotation marks.
    name: &'a [u8],
    parameters: &'a [u8],
}

impl Member<'_> {
    /// The parameter `r`, if it can be read.
    fn left(&self) -> Option<u64> {
        let mut parameters = self.parameters.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        parameters.find_map(|parameter| decimal::parse(parameter.strip_prefix(b"r=")?))
    }
}

/// Parses the members of a list; `None` if anything in it is not a String with parameters.
fn members(list: &[u8]) -> Option<Vec<Member<'_>>> {
    let mut members = Vec::new();
    let mut rest = list;
    loop {
        rest = rest.trim_ascii_start();
        match rest {
            [] => return Some(members),
            [b',', after @ ..] => rest = after,
            _ => {
                let (name, after) = rest.split_at(string_end(rest)?);
                let (parameters, after) = after.split_at(parameters_end(after)?);
                let parameters = parameters.trim_ascii_end();
                if !matches!(parameters, [] | [b';', ..]) {
                    return None;
                }
                members.push(Member { name, parameters });
                rest = after;
            }
        }
    }
}

/// Returns the length of the String at the start of `text`.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = text.strip_prefix(b"\"").map(|_| 1)?;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the length of the parameters at the start of `text`: up to a comma, or to the end.
fn parameters_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at) {
            None | Some(b',') => return Some(at),
            Some(b'"') => at += string_end(&text[at..])?,
            Some(_) => at += 1,
        }
    }
}

/// Joins all lines of a field (RFC 9110, section 5.3).
fn lines(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let lines: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    lines.join(&b',')
}

fn joined(members: &[Member<'_>]) -> Vec<u8> {
    let members: Vec<_> = members.iter().map(|member| [member.name, member.parameters].concat()).collect();
    members.join(b", ".as_slice())
}

/// Whether a field with one number of remaining units is set and must stay: it has no more than `left`,
/// or cannot be read.
pub(super) fn is_stricter(headers: &HeaderMap, name: &HeaderName, left: u32) -> bool {
    let mut lines = headers.get_all(name).iter();
    lines.any(|line| remaining_in(line.as_bytes()).is_none_or(|there| there <= u64::from(left)))
}

/// Parses an Integer, or the `remaining` of draft-07.
fn remaining_in(value: &[u8]) -> Option<u64> {
    let members = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let number = members.filter_map(|member| member.strip_prefix(b"remaining=")).next();
    decimal::parse(number.unwrap_or(value.trim_ascii()))
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
    fn members_that_are_there_stay_and_come_first() {
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
    fn of_one_name_the_tighter_member_stays_in_both_fields() {
        let (theirs, ours) = (["\"a\";q=1;w=60"], "\"a\";q=9;w=60");
        assert_eq!(after(&["\"a\";r=3;t=7"], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=3;t=7", "\"a\";q=1;w=60"]);
        assert_eq!(after(&["\"a\";r=4;t=7"], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=4;t=7", "\"a\";q=1;w=60"]);
        assert_eq!(after(&["\"a\";t=7;r=5"], &theirs, "\"a\";r=4;t=8", ours), ["\"a\";r=4;t=8", "\"a\";q=9;w=60"]);
        assert_eq!(after(&["\"a\""], &theirs, "\"a\";r=0", ours), ["\"a\"", "\"a\";q=1;w=60"]);
        assert_eq!(after(&[], &theirs, "", ours), ["", "\"a\";q=1;w=60"]);
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
    fn a_single_number_yields_to_a_smaller_one_only() {
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
