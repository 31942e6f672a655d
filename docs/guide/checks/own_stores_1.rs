// Included by a program in `docs/guide/own_stores.md`.

{
    use std::collections::HashMap;
    use std::convert::Infallible;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Client(Mutex<HashMap<String, Vec<u8>>>);

    impl KeyValue for Client {
        type Error = Infallible;

        async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
            Ok(self.0.lock().unwrap().get(key).cloned())
        }

        async fn compare_and_swap(
            &self,
            key: &str,
            old: Option<&[u8]>,
            new: Option<&[u8]>,
            _lifetime: Duration,
        ) -> Result<bool, Infallible> {
            let mut map = self.0.lock().unwrap();
            let is_unchanged = map.get(key).map(Vec::as_slice) == old;
            match new.filter(|_| is_unchanged) {
                Some(new) => drop(map.insert(key.to_owned(), new.to_vec())),
                None if is_unchanged => drop(map.remove(key)),
                None => {}
            }
            Ok(is_unchanged)
        }
    }

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(share(Arc::new(Client::default()))).unwrap();
}
