//! Files that several pages share.

pub(super) const STYLE: &str = include_str!("../ui/page.css");
