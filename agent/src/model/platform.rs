//! Platforms of images: operating system, architecture and variant, as compose and registries write them.

use std::fmt;

/// A normalized platform, such as `linux/amd64` or `linux/arm/v7`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Platform {
    os: String,
    architecture: String,
    /// Empty if unspecified.
    variant: String,
}

impl Platform {
    /// Normalizes the parts of a platform; `None` if the architecture is unknown. Kernel names of architectures are
    /// accepted, too.
    pub fn new(os: &str, architecture: &str, variant: &str) -> Option<Self> {
        let (architecture, implied) = match architecture {
            "unknown" | "" => return None,
            "x86_64" | "x86-64" => ("amd64", ""),
            "aarch64" => ("arm64", ""),
            "armhf" => ("arm", "v7"),
            "armel" => ("arm", "v6"),
            "armv7l" | "armv6l" => ("arm", ""),
            "i686" | "i386" => ("386", ""),
            other => (other, ""),
        };
        let variant = match (architecture, variant) {
            // v8 is the only variant.
            ("arm64", "8" | "v8") => "",
            (_, "") => implied,
            (_, variant) => variant,
        };
        let [os, architecture, variant] = [os, architecture, variant].map(str::to_owned);
        Some(Self { os, architecture, variant })
    }

    /// Parses `os/architecture[/variant]`; `None` for anything else, such as an operating system alone.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_lowercase();
        let mut parts = text.splitn(3, '/');
        Self::new(parts.next()?, parts.next()?, parts.next().unwrap_or_default())
    }

    /// Reports whether an image for this platform runs on the wanted one. Variants are compared only if both are given.
    pub fn satisfies(&self, wanted: &Self) -> bool {
        let variant = self.variant.is_empty() || wanted.variant.is_empty() || self.variant == wanted.variant;
        self.os == wanted.os && self.architecture == wanted.architecture && variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_compared_after_normalization() {
        let cases = [
            ("linux/amd64", "linux/amd64", true),
            ("linux/x86_64", "linux/amd64", true),
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/aarch64", "linux/arm64/v8", true),
            ("linux/arm/v7", "linux/arm", true),
            ("linux/armhf", "linux/arm/v6", false),
            ("linux/amd64", "linux/arm64", false),
            ("windows/amd64", "linux/amd64", false),
        ];
        for (have, wanted, expected) in cases {
            let [have, wanted] = [have, wanted].map(|text| Platform::parse(text).unwrap());
            assert_eq!(have.satisfies(&wanted), expected, "{have} for {wanted}");
        }
        for text in ["", "linux", "linux/", "linux/unknown"] {
            assert_eq!(Platform::parse(text), None, "{text}");
        }
    }
}
