//! Sorts lists that are rarely sorted. A sort is large code, so this crate compiles one for all lists.

/// Returns the indices in the order of the keys. Equal keys stay in their order.
pub(crate) fn order_of(keys: impl Iterator<Item = [u64; 3]>) -> Vec<usize> {
    let mut sorted: Vec<([u64; 3], usize)> = keys.zip(0..).collect();
    sort(&mut sorted);
    sorted.into_iter().map(|(_, index)| index).collect()
}

#[inline(never)]
fn sort(keys: &mut [([u64; 3], usize)]) {
    keys.sort_unstable();
}

/// Sorts a list by a key for each element. Equal keys stay in their order.
pub(crate) fn sort_by_key<T>(list: Vec<T>, key: impl Fn(&T) -> [u64; 3]) -> Vec<T> {
    let order = order_of(list.iter().map(key));
    let mut list: Vec<Option<T>> = list.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| list[index].take()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_stay_in_their_order() {
        let list = vec![(3, 'a'), (1, 'b'), (3, 'c'), (2, 'd'), (1, 'e')];
        let sorted = sort_by_key(list, |(key, _)| [0, *key, 0]);
        assert_eq!(sorted, [(1, 'b'), (1, 'e'), (2, 'd'), (3, 'a'), (3, 'c')]);
    }
}
