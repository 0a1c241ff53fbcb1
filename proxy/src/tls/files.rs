//! Files in PEM form that belong together, and what is made of them. They are read again when they change.
//!
//! They are small and a mounted Secret lies in memory, so reading them does not wait.

use std::io;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why nothing can be made of files.
pub type FileFault = Box<dyn std::error::Error + Send + Sync>;

/// Files, and what was made of them last.
#[derive(Debug)]
pub struct Files<T> {
    paths: Vec<String>,
    /// What was read last, whether anything could be made of it or not.
    read: Option<Vec<Vec<u8>>>,
    made: Option<T>,
}

impl<T: Clone> Files<T> {
    /// Of these paths, of which none is read yet.
    #[must_use]
    pub const fn new(paths: Vec<String>) -> Self {
        Self { paths, read: None, made: None }
    }

    /// What is made of the files as they are now. `make` is asked where they have changed, with one text a path.
    ///
    /// # Errors
    /// When a file cannot be read, or they do not fit. What was made before is kept for [`Self::last`].
    pub fn refresh(&mut self, make: impl FnOnce(&[Vec<u8>]) -> Result<T, FileFault>) -> io::Result<T> {
        let texts = read(&self.paths)?;
        if let Some(made) = self.made.as_ref().filter(|_| self.read.as_ref() == Some(&texts)) {
            return Ok(made.clone());
        }
        let made = make(&texts).map_err(|fault| io::Error::other(format!("{}: {fault}", self.name())))?;
        self.read = Some(texts);
        Ok(self.made.insert(made).clone())
    }

    /// What was made last.
    #[must_use]
    pub const fn last(&self) -> Option<&T> {
        self.made.as_ref()
    }

    fn name(&self) -> String {
        self.paths.join(", ")
    }
}

fn read(paths: &[String]) -> io::Result<Vec<Vec<u8>>> {
    let read =
        |path| std::fs::read(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")));
    paths.iter().map(read).collect()
}

/// A certificate chain with its key.
#[derive(Debug)]
pub struct Identity {
    /// The certificate first, then those that lead to its CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key of the first.
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads both.
    ///
    /// # Errors
    /// When either is not there or not in PEM form.
    pub fn parse(chain: &[u8], key: &[u8]) -> Result<Self, FileFault> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
        if chain.is_empty() {
            return Err("there is no certificate".into());
        }
        Ok(Self { chain, key: PrivateKeyDer::from_pem_slice(key)? })
    }

    /// When the certificate expires, in seconds since 1970.
    #[must_use]
    pub fn not_after(&self) -> Option<i64> {
        let (_, certificate) = x509_parser::parse_x509_certificate(self.chain.first()?).ok()?;
        Some(certificate.validity().not_after.timestamp())
    }
}

/// Reads the certificates of a CA.
///
/// # Errors
/// When there is none, or one is not in PEM form.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, FileFault> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(pem) {
        roots.add(root?)?;
    }
    if roots.is_empty() {
        return Err("there is no certificate of a CA".into());
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_something_of_when_they_change_and_the_last_good_ones_stay() {
        let path = std::env::temp_dir().join(format!("pgrouting-files-{}", std::process::id()));
        let mut files = Files::new(vec![path.display().to_string()]);
        let make = |texts: &[Vec<u8>]| match texts {
            [text] if text == b"broken" => Err("does not fit".into()),
            texts => Ok(texts.concat()),
        };
        assert!(files.refresh(make).unwrap_err().to_string().contains(&path.display().to_string()));
        std::fs::write(&path, "one").unwrap();
        assert_eq!(files.refresh(make).unwrap(), b"one");
        assert_eq!(files.refresh(|_| panic!("nothing has changed")).unwrap(), b"one");
        std::fs::write(&path, "broken").unwrap();
        for _ in 0..2 {
            assert!(files.refresh(make).unwrap_err().to_string().ends_with("does not fit"));
        }
        assert_eq!(files.last().unwrap(), b"one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(files.refresh(make).unwrap(), b"two");
        std::fs::remove_file(&path).unwrap();
        assert!(files.refresh(make).is_err());
        assert_eq!(files.last().unwrap(), b"two");
    }

    #[test]
    fn what_is_no_certificate_is_said() {
        assert!(roots(b"").unwrap_err().to_string().contains("no certificate"));
        assert!(Identity::parse(b"nothing", b"").unwrap_err().to_string().contains("no certificate"));
    }
}
