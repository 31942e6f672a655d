//! The text of a plain charge to two keys, made from their algorithms' parts.

use super::{IS_PLAIN, Kind, Statement, WEIGHT, expires};

/// The plain charge to two keys. The first key's columns begin with `a_`, or with `a_r_` if its row has them; the
/// second key's with `b_` and `b_r_`.
pub(super) fn pair(kinds: [Kind; 2], table: &str) -> Statement {
    let [(a_steps, a), (b_steps, b)] = [part(kinds[0], "a_", ""), part(kinds[1], "b_", "_2")];
    let counted = (0..a_steps.len().max(b_steps.len())).map(|index| {
        let steps = [&a_steps, &b_steps].map(|steps| steps.get(index).map(|step| step.trim().trim_start_matches("> ")));
        format!("    > {}", steps.into_iter().flatten().collect::<Vec<_>>().join(", "))
    });
    let counted = counted.collect::<Vec<_>>().join("\n");
    let parts = a.iter().chain(&b).map(|(name, text)| (&**name, &**text));
    let parts: Vec<_> = std::iter::once(("counted", &*counted)).chain(parts).collect();
    Statement::new(include_str!("pair.sql"), table, &parts)
}

/// The steps that count one key's used units, and its parts of the text, by name.
fn part(kind: Kind, prefix: &str, suffix: &str) -> (Vec<String>, [(String, String); 7]) {
    let parts = kind.parts();
    let of_key = |text: &str| named_for(text, prefix, suffix);
    let columns = parts.columns.split(", ");
    let sets: Vec<_> = columns.clone().map(|column| format!("{column} = {prefix}{column}")).collect();
    let of_row = ["number", "previous", "used", "bans_until"];
    let found = of_row.map(|column| format!("{row}.{column} AS {prefix}r_{column}", row = &prefix[..1])).join(", ");
    let returned: Vec<_> = columns.map(|column| format!("{prefix}r_{column}")).collect();
    let is_plain = ["@limit", "@burst", "@period"]
        .iter()
        .fold(IS_PLAIN.to_owned(), |text, name| text.replace(name, &format!("{name}{suffix}")));
    let texts = [
        ("is_plain", is_plain),
        ("found", found),
        ("fits", of_key(parts.fits)),
        // Both are charged for one request.
        ("state", of_key(&parts.plain_state().replace("charged", "1::int8"))),
        ("sets", sets.join(", ")),
        ("expires", of_key(&expires(parts.ends))),
        ("returned", returned.join(", ").replace("number", "number::text")),
    ];
    let steps = parts.plainly_counted.replace("{weight}", WEIGHT).lines().map(of_key).collect();
    (steps, texts.map(|(name, text)| (format!("{prefix}{name}"), text)))
}

/// Renames one key's parameters and columns, so that both keys fit into one text.
fn named_for(text: &str, prefix: &str, suffix: &str) -> String {
    const PARAMETERS: [&str; 5] = ["@key", "@cost", "@limit", "@burst", "@period"];
    let is_inside = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let of_steps = |word: &str| {
        let whole = ["debt", "number", "previous", "used", "weight", "window_of_clock"];
        whole.contains(&word) || word.starts_with("present_")
    };
    let (mut named, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let length = first.len_utf8();
        let end = rest[length..].find(|next| !is_inside(next)).map_or(rest.len(), |end| length + end);
        let end = if is_inside(first) || first == '@' { end } else { length };
        let (word, behind) = rest.split_at(end);
        rest = behind;
        match word {
            "r" if rest.starts_with('.') => {
                named.extend([prefix, "r_"]);
                // The row's column has the name that a step may also have.
                let column = rest[1..].find(|next| !is_inside(next)).map_or(rest.len(), |end| 1 + end);
                named.push_str(&rest[1..column]);
                rest = &rest[column..];
            }
            _ if PARAMETERS.contains(&word) => named.extend([word, suffix]),
            _ if of_steps(word) => named.extend([prefix, word]),
            _ => named.push_str(word),
        }
    }
    named
}
