//! Kubernetes ConfigMaps, which contain files.

/// If the text is a ConfigMap, says how to get the files out.
pub(super) fn advice(text: &str) -> Option<String> {
    let is_config_map = text.lines().any(|line| value_of(line, "kind:") == Some("ConfigMap"));
    if !is_config_map {
        return None;
    }
    let name = below(text, "metadata:").find_map(|line| value_of(line.trim_start(), "name:")).unwrap_or("NAME");
    let keys = below(text, "data:").filter(|line| indent(line) == 2);
    let key = keys.filter_map(|line| line.trim_start().split_once(':')).map(|(key, _)| unquoted(key)).next();
    let key = key.unwrap_or("KEY");
    Some(format!(
        "this is a Kubernetes ConfigMap, which has the file in its `data`; mount the ConfigMap and name the mounted file, \
         or write the file: kubectl get configmap {name} -o jsonpath='{{.data.{}}}' > {key}",
        key.replace('.', "\\.")
    ))
}

/// Returns the lines in a table at the top, as ConfigMaps are written: with two spaces in front.
fn below<'a>(text: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().skip_while(move |line| line.trim_end() != key).skip(1);
    lines.take_while(|line| line.starts_with(' ') || line.trim().is_empty())
}

fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key).map(|value| unquoted(value.trim()))
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_map_and_file() {
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: limits\n  namespace: edge\ndata:\n  config.yaml: |\n    \
                   domain: shop\n  other.yaml: |\n    domain: x\n";
        let advice = advice(map).unwrap();
        assert!(
            advice.ends_with(r"kubectl get configmap limits -o jsonpath='{.data.config\.yaml}' > config.yaml"),
            "{advice}"
        );
    }

    #[test]
    fn other_files_are_no_config_maps() {
        assert_eq!(advice("domain: shop\ndescriptors: []\n"), None);
        assert_eq!(advice("kind: Service\n"), None);
        assert!(advice("kind: \"ConfigMap\"\n").unwrap().ends_with("configmap NAME -o jsonpath='{.data.KEY}' > KEY"));
    }
}
