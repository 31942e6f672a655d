//! The notations of nginx, Apache, Envoy, HAProxy and gunicorn.

use super::{Field, Pattern, Piece, SEPARATOR};

/// The parts that a time may have.
const MOST_PARTS: usize = 4;

/// A format string that is being read.
#[derive(Default)]
struct Reader {
    pieces: Vec<Piece>,
    optional: Option<usize>,
    parts: Vec<String>,
}

pub(super) fn read(text: &str) -> Result<Pattern, String> {
    let text = &unwrapped(text);
    let mut reader = Reader::default();
    if text.contains("%START_TIME") || text.contains("%REQ(") {
        envoy(text, &mut reader)?;
    } else if text.contains('$') {
        nginx(text, &mut reader);
    } else if text.contains("%(") {
        gunicorn(text, &mut reader)?;
    } else if text.contains("%ci") {
        haproxy(text, &mut reader)?;
    } else if text.contains('%') {
        apache(text, &mut reader)?;
    } else {
        return Err("it has no field, such as $remote_addr or %h".to_owned());
    }
    reader.finish()
}

/// Unwraps the string from a directive that was copied with its name: nginx's `log_format main '…' '…';` or Apache's
/// `LogFormat "…" combined`.
fn unwrapped(text: &str) -> String {
    // Envoy's strings end with a line feed, which no line has.
    let text = text.trim().trim_end_matches("\\n");
    let is_nginx = text.starts_with("log_format");
    let is_apache = text.get(..9).is_some_and(|begin| begin.eq_ignore_ascii_case("LogFormat"));
    if !is_nginx && !is_apache {
        // A string in httpd.conf has its quotation marks escaped.
        return text.replace("\\\"", "\"");
    }
    let mut whole = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(['\'', '"']) {
        let quote = if rest[start..].starts_with('"') { '"' } else { '\'' };
        rest = &rest[start + 1..];
        let mut is_escaped = false;
        let end = rest.find(|next: char| {
            let is_end = next == quote && !is_escaped;
            is_escaped = next == '\\' && !is_escaped;
            is_end
        });
        let end = end.unwrap_or(rest.len());
        whole.push_str(&rest[..end]);
        rest = rest.get(end + 1..).unwrap_or_default();
        if is_apache {
            break;
        }
    }
    whole.replace("\\\"", "\"")
}

impl Reader {
    fn literal(&mut self, text: &str) {
        for character in text.chars() {
            let mut buffer = [0; 4];
            let bytes = match character {
                '\t' => &b" "[..],
                character => character.encode_utf8(&mut buffer).as_bytes(),
            };
            let count = self.pieces.len();
            match self.pieces.last_mut() {
                _ if self.optional == Some(count) => self.pieces.push(Piece::Literal(bytes.to_vec())),
                // A space stands for one or more.
                Some(Piece::Literal(literal)) if bytes == b" " && literal.ends_with(b" ") => {}
                Some(Piece::Literal(literal)) => literal.extend_from_slice(bytes),
                _ => self.pieces.push(Piece::Literal(bytes.to_vec())),
            }
        }
    }

    fn field(&mut self, field: Field, name: &str) {
        let before = match self.pieces.last_mut() {
            Some(Piece::Field(before, _)) => before,
            _ => return self.pieces.push(Piece::Field(field, name.to_owned())),
        };
        match (&*before, &field) {
            // `%U%q` and `$uri$is_args$args` are the target.
            (Field::Path | Field::Target, Field::Query | Field::Ignored) => *before = Field::Target,
            _ => self.pieces.push(Piece::Field(field, name.to_owned())),
        }
    }

    /// Adds a part of the time, in `strftime` notation.
    fn time_part(&mut self, format: &str, name: &str) -> Result<(), String> {
        if self.parts.len() == MOST_PARTS {
            return Err(format!("the time has more than {MOST_PARTS} parts"));
        }
        let spaces = format.matches(' ').count() + 5 * format.matches("%c").count();
        self.field(Field::TimePart(self.parts.len(), spaces), name);
        self.parts.push(format.to_owned());
        Ok(())
    }

    fn finish(self) -> Result<Pattern, String> {
        let Self { mut pieces, optional, parts } = self;
        for pair in pieces.windows(2) {
            if let [Piece::Field(_, one), Piece::Field(_, other)] = pair {
                return Err(format!("nothing is between {one} and {other}, so that a line cannot be read"));
            }
        }
        // The spaces in a part count only if it ends with one: they are no longer literal.
        for index in 0..pieces.len() {
            let is_spaced = matches!(pieces.get(index + 1), Some(Piece::Literal(literal)) if literal == b" ");
            if let (Piece::Field(Field::TimePart(_, spaces), _), false) = (&mut pieces[index], is_spaced) {
                *spaces = 0;
            }
        }
        let has = |wanted: &[Field]| {
            pieces.iter().any(|piece| matches!(piece, Piece::Field(field, _) if wanted.contains(field)))
        };
        if !has(&[Field::Time]) && parts.is_empty() {
            return Err("it has no time: add $time_iso8601 (nginx), %t (Apache) or %START_TIME% (Envoy)".to_owned());
        }
        if !has(&[Field::Request, Field::Target, Field::Path]) {
            return Err("it has no path: add $request (nginx), %r (Apache) or %REQ(:PATH)% (Envoy)".to_owned());
        }
        let is_forwarded = !has(&[Field::Client]);
        let optional = optional.unwrap_or(usize::MAX);
        Ok(Pattern { pieces, optional, time_parts: parts.join(&SEPARATOR.to_string()), is_forwarded })
    }
}

fn header(name: &str) -> Field {
    Field::Header(name.to_ascii_lowercase().replace('_', "-"))
}

/// `$name` and `${name}`. The field `$?` is this crate's: a line may end there.
fn nginx(text: &str, reader: &mut Reader) {
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        reader.literal(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('?') {
            reader.optional = Some(reader.pieces.len());
            rest = behind;
            continue;
        }
        let is_braced = rest.starts_with('{');
        rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|next: char| !next.is_ascii_alphanumeric() && next != '_').unwrap_or(rest.len());
        let name = &rest[..end];
        rest = &rest[end..];
        if is_braced {
            rest = rest.strip_prefix('}').unwrap_or(rest);
        }
        let field = match name {
            // The short names are as in `json:`.
            "remote_addr" | "the_real_ip" | "client" => Field::Client,
            "remote_user" | "user" => Field::User,
            "time_local" | "time_iso8601" | "msec" | "time" => Field::Time,
            "request" => Field::Request,
            "request_method" | "method" => Field::Method,
            "request_uri" | "path" => Field::Target,
            "uri" | "document_uri" => Field::Path,
            "args" | "query_string" => Field::Query,
            "status" => Field::Status,
            "body_bytes_sent" | "bytes_sent" | "bytes" => Field::Bytes,
            "host" | "server_name" => header("host"),
            "proxy_add_x_forwarded_for" => header("x-forwarded-for"),
            name => match (name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
                (Some(name), _) => header(name),
                (None, Some(name)) => Field::Cookie(name.to_owned()),
                (None, None) => Field::Ignored,
            },
        };
        reader.field(field, &format!("${name}"));
    }
    reader.literal(rest);
}

/// `%h`, `%>s`, `%{NAME}i`, `%400,501{NAME}i`.
fn apache(text: &str, reader: &mut Reader) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        reader.literal(&rest[..at]);
        let begin = &rest[at..];
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            reader.literal("%");
            rest = behind;
            continue;
        }
        rest = rest.trim_start_matches(|next: char| next.is_ascii_digit() || matches!(next, '!' | ',' | '<' | '>'));
        let mut argument = None;
        if let Some(behind) = rest.strip_prefix('{') {
            let (inside, behind) = behind.split_once('}').ok_or("a { of Apache's format does not end")?;
            argument = Some(inside);
            rest = behind;
        }
        let letter = rest.chars().next().ok_or("the format ends with %")?;
        let is_trailer = rest.starts_with("^t");
        rest = &rest[if is_trailer { 3.min(rest.len()) } else { letter.len_utf8() }..];
        let name = &begin[..begin.len() - rest.len()];
        apache_field(letter, argument, name, reader)?;
    }
    reader.literal(rest);
    Ok(())
}

fn apache_field(letter: char, argument: Option<&str>, name: &str, reader: &mut Reader) -> Result<(), String> {
    let field = match (letter, argument) {
        ('h' | 'a', _) => Field::Client,
        ('u', _) => Field::User,
        ('t', None) => {
            reader.literal("[");
            reader.field(Field::Time, name);
            reader.literal("]");
            return Ok(());
        }
        ('t', Some(form)) => return apache_time(form, name, reader),
        ('r', _) => Field::Request,
        ('m', _) => Field::Method,
        ('U', _) => Field::Path,
        ('q', _) => Field::Query,
        ('s', _) => Field::Status,
        ('b' | 'B' | 'O', _) => Field::Bytes,
        ('v' | 'V', _) => header("host"),
        ('i', Some(name)) => header(name),
        ('C', Some(name)) => Field::Cookie(name.to_owned()),
        _ => Field::Ignored,
    };
    reader.field(field, name);
    Ok(())
}

fn apache_time(form: &str, name: &str, reader: &mut Reader) -> Result<(), String> {
    let form = form.strip_prefix("begin:").or_else(|| form.strip_prefix("end:")).unwrap_or(form);
    match form {
        "sec" | "msec" | "usec" => reader.field(Field::Time, name),
        "msec_frac" => reader.field(Field::Fraction(1_000_000), name),
        "usec_frac" => reader.field(Field::Fraction(1_000), name),
        form if form.contains('%') => reader.time_part(form, name)?,
        // Tomcat's format is Java's: `%{yyyy-MM-dd HH:mm:ss.SSS}t`.
        form => reader.time_part(&java(form)?, name)?,
    }
    Ok(())
}

/// Translates a format for Java's `SimpleDateFormat`.
fn java(form: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = form;
    while let Some(letter) = rest.chars().next() {
        if letter == '\'' {
            let (quoted, behind) = rest[1..].split_once('\'').ok_or("a ' of the time's form does not end")?;
            text.push_str(quoted);
            rest = behind;
            continue;
        }
        let end = rest.find(|next| next != letter).unwrap_or(rest.len());
        let (run, behind) = rest.split_at(end);
        rest = behind;
        text.push_str(match (letter, run.len()) {
            ('y', _) => "%Y",
            ('M', 3) => "%b",
            ('M', 1 | 2) => "%m",
            ('d', _) => "%d",
            ('H', _) => "%H",
            ('m', _) => "%M",
            ('s', _) => "%S",
            ('S', _) => "%f",
            ('Z' | 'X' | 'x', _) => "%z",
            ('E', _) => "%a",
            (letter, _) if letter.is_ascii_alphabetic() => {
                return Err(format!("`{run}` in the form of the time is not known; write it as strftime does"));
            }
            _ => run,
        });
    }
    Ok(text)
}

/// `%NAME%` and `%NAME(ARGUMENT):LENGTH%`.
fn envoy(text: &str, reader: &mut Reader) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        reader.literal(&rest[..at]);
        rest = &rest[at + 1..];
        let name_end = rest.find(['%', '(']).ok_or("a % of Envoy's format does not end")?;
        let (name, mut behind) = rest.split_at(name_end);
        let mut argument = None;
        if let Some(inside) = behind.strip_prefix('(') {
            let (inside, after) = inside.split_once(')').ok_or("a ( of Envoy's format does not end")?;
            argument = Some(inside);
            behind = after;
        }
        let (_length, after) = behind.split_once('%').ok_or("a % of Envoy's format does not end")?;
        let whole = format!("%{}%", &rest[..rest.len() - after.len() - 1]);
        rest = after;
        let field = match (name, argument) {
            // Seconds since the epoch, with a fraction or without.
            ("START_TIME", Some(form)) if form.starts_with("%s") => Field::Time,
            ("START_TIME", Some(form)) => {
                reader.time_part(&envoy_time(form), &whole)?;
                continue;
            }
            ("START_TIME", None) => Field::Time,
            ("REQ", Some(names)) => envoy_header(names),
            ("RESPONSE_CODE", _) => Field::Status,
            ("BYTES_SENT", _) => Field::Bytes,
            ("PATH", _) => Field::Target,
            ("DOWNSTREAM_REMOTE_ADDRESS" | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", _) => Field::Client,
            _ => Field::Ignored,
        };
        reader.field(field, &whole);
    }
    reader.literal(rest);
    Ok(())
}

/// Envoy's `%3f` stands for a fraction's digits behind a point.
fn envoy_time(form: &str) -> String {
    let mut form = form.to_owned();
    for digits in 1..=9 {
        form = form.replace(&format!("%{digits}f"), "%f");
    }
    form
}

fn envoy_header(names: &str) -> Field {
    let names: Vec<&str> = names.split('?').collect();
    if names.iter().any(|name| name.eq_ignore_ascii_case(":path")) {
        return Field::Target;
    }
    match names[0] {
        ":METHOD" | ":method" => Field::Method,
        ":AUTHORITY" | ":authority" => header("host"),
        name => header(name),
    }
}

/// `%ci`, `%[tr]`, `%{+Q}r`.
fn haproxy(text: &str, reader: &mut Reader) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        reader.literal(&rest[..at]);
        let begin = &rest[at..];
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('%') {
            reader.literal("%");
            rest = behind;
            continue;
        }
        let mut is_quoted = false;
        if let Some(behind) = rest.strip_prefix('{') {
            let (flags, behind) = behind.split_once('}').ok_or("a { of HAProxy's format does not end")?;
            is_quoted = flags.contains("+Q");
            rest = behind;
        }
        if let Some(behind) = rest.strip_prefix('[') {
            let (_, behind) = behind.split_once(']').ok_or("a [ of HAProxy's format does not end")?;
            rest = behind;
            reader.field(Field::Ignored, &begin[..begin.len() - rest.len()]);
            continue;
        }
        let end = rest.find(|next: char| !next.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (variable, behind) = rest.split_at(end);
        rest = behind;
        let field = match variable {
            "ci" => Field::Client,
            "t" | "tr" | "T" | "Tl" | "trg" | "trl" | "Ts" => Field::Time,
            "r" => Field::Request,
            "HM" => Field::Method,
            "HU" => Field::Target,
            "HP" => Field::Path,
            "HQ" => Field::Query,
            "ST" => Field::Status,
            "B" => Field::Bytes,
            _ => Field::Ignored,
        };
        let name = &begin[..begin.len() - rest.len()];
        if is_quoted {
            reader.literal("\"");
        }
        reader.field(field, name);
        if is_quoted {
            reader.literal("\"");
        }
    }
    reader.literal(rest);
    Ok(())
}

/// `%(h)s`, `%({name}i)s`.
fn gunicorn(text: &str, reader: &mut Reader) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find("%(") {
        reader.literal(&rest[..at]);
        let (inside, behind) = rest[at + 2..].split_once(')').ok_or("a ( of gunicorn's format does not end")?;
        let length = behind.chars().next().map_or(0, char::len_utf8);
        let name = &rest[at..at + 3 + inside.len() + length];
        rest = &behind[length..];
        match inside {
            "f" => reader.field(header("referer"), name),
            "a" => reader.field(header("user-agent"), name),
            "t" => apache_field('t', None, name, reader)?,
            inside => {
                let (argument, letter) = match inside.strip_prefix('{').and_then(|inside| inside.split_once('}')) {
                    Some((argument, letter)) => (Some(argument), letter),
                    None => (None, inside),
                };
                apache_field(letter.chars().next().unwrap_or('-'), argument, name, reader)?;
            }
        }
    }
    reader.literal(rest);
    Ok(())
}
