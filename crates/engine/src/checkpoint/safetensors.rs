//! The safetensors container: a length, a JSON header, then the tensors' bytes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    marker::PhantomData,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::Source;
use crate::{Error, model::Bytes};

/// Longest header that is believed; the format's own limit.
const HEADER_BYTES_MAX: usize = 100_000_000;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a checkpoint, by name.
#[derive(Debug, Default)]
pub struct Tensors {
    by_name: BTreeMap<String, Tensor>,
}

/// One tensor: its place in a mapped file.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The file that holds it.
    pub path: PathBuf,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its elements, little endian; the length agrees with dtype and shape.
    pub bytes: Bytes,
}

/// Element types that checkpoints of the family hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[allow(missing_docs)] // the names say it all
pub enum Dtype {
    F32,
    F16,
    BF16,
    U32,
    I32,
    U8,
    I64,
    #[serde(other)]
    Other,
}

impl Tensors {
    /// All tensors of a checkpoint: the shards its index names, else the single file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`] or [`Error::Tensor`].
    pub fn open(source: &Source) -> Result<Self, Error> {
        if source.has(INDEX)? {
            return Self::open_sharded(source);
        }
        if !source.has(SINGLE)? {
            let problem = source.foreign_format().unwrap_or_else(|| {
                format!("holds neither {SINGLE} nor {INDEX}: fetch the checkpoint again")
            });
            return Err(Error::Format { path: source.path(), problem });
        }
        let mut tensors = Self::default();
        tensors.add_file(source, SINGLE)?;
        Ok(tensors)
    }

    /// The tensors of one file outside a checkpoint, as golden outputs are kept.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Format`] or [`Error::Tensor`].
    pub fn open_file(path: &Path) -> Result<Self, Error> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut tensors = Self::default();
        tensors.add_file(&Source::folder(parent.unwrap_or(".".as_ref())), name)?;
        Ok(tensors)
    }

    /// The tensors of a file that was read or mapped. `path` is where it comes from, for messages.
    ///
    /// # Errors
    /// [`Error::Format`] or [`Error::Tensor`].
    pub fn parse(path: &Path, file: &Bytes) -> Result<Self, Error> {
        let mut tensors = Self::default();
        tensors.add(path, file)?;
        Ok(tensors)
    }

    /// Removes a tensor from the set and gives it.
    pub fn take(&mut self, name: &str) -> Option<Tensor> {
        self.by_name.remove(name)
    }

    /// The tensors that are left, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Tensor)> {
        self.by_name.iter()
    }

    fn open_sharded(source: &Source) -> Result<Self, Error> {
        let path = source.path().join(INDEX);
        let index = Index::parse(&path, &source.read(INDEX)?)?;
        let mut tensors = Self::default();
        refuse_unnamed(source, &index)?;
        for file in index.shards() {
            if !source.has(file)? {
                let problem = format!(
                    "names the shard `{file}`, which is not in the folder: fetch the shard, or the \
                     whole checkpoint again"
                );
                return Err(Error::Format { path, problem });
            }
            tensors.add_file(source, file)?;
        }
        for (name, file) in &index.weight_map.0 {
            let held = tensors.by_name.get(name).map(|tensor| tensor.path.ends_with(file));
            if held != Some(true) {
                let problem = format!(
                    "the index places it in `{file}`, which does not hold it: fetch both again"
                );
                return Err(Error::Tensor { path, tensor: name.clone(), problem });
            }
        }
        Ok(tensors)
    }

    fn add_file(&mut self, source: &Source, name: &str) -> Result<(), Error> {
        self.add(&source.path().join(name), &source.map(name)?)
    }

    fn add(&mut self, path: &Path, file: &Bytes) -> Result<(), Error> {
        for (name, tensor) in read_file(path, file)? {
            if let Some(other) = self.by_name.get(&name) {
                let problem =
                    format!("stands in {} too: fetch both files again", other.path.display());
                return Err(Error::Tensor { path: path.to_owned(), tensor: name, problem });
            }
            self.by_name.insert(name, tensor);
        }
        Ok(())
    }
}

impl Dtype {
    /// Bytes of an element; `None` for a type that is not read here.
    pub fn size_bytes(self) -> Option<usize> {
        match self {
            Self::U8 => Some(1),
            Self::F16 | Self::BF16 => Some(2),
            Self::F32 | Self::U32 | Self::I32 => Some(4),
            Self::I64 => Some(8),
            Self::Other => None,
        }
    }

    /// Whether it is one of the float types read here.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }
}

impl Tensor {
    /// The elements of a float tensor as f32; `None` for other types.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let halves = |f: fn([u8; 2]) -> f32| {
            self.bytes.chunks_exact(2).map(|b| f([b[0], b[1]])).collect::<Vec<f32>>()
        };
        match self.dtype {
            Dtype::BF16 => Some(halves(|b| half::bf16::from_le_bytes(b).to_f32())),
            Dtype::F16 => Some(halves(|b| half::f16::from_le_bytes(b).to_f32())),
            Dtype::F32 => Some(
                self.bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
            ),
            _ => None,
        }
    }
}

/// The files that the text of a `model.safetensors.index.json` names, each once, in order.
///
/// `path` is where the text comes from, for messages.
///
/// # Errors
/// [`Error::Format`] for what is no index, and for a name that is not a plain file name.
pub fn shard_names(path: &Path, text: &[u8]) -> Result<Vec<String>, Error> {
    Ok(Index::parse(path, text)?.shards().map(str::to_owned).collect())
}

/// Refuses a folder with a shard that the index does not name: its tensors would be missing.
fn refuse_unnamed(source: &Source, index: &Index) -> Result<(), Error> {
    let named: BTreeSet<&str> = index.shards().collect();
    let is_shard = |name: &str| {
        name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors")
    };
    let unnamed =
        source.names()?.into_iter().find(|name| is_shard(name) && !named.contains(&**name));
    match unnamed {
        None => Ok(()),
        Some(name) => Err(Error::Format {
            path: source.path().join(name),
            problem: format!("is not named by {INDEX}: remove it, or fetch both again"),
        }),
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: Pairs<String>,
}

impl Index {
    fn parse(path: &Path, text: &[u8]) -> Result<Self, Error> {
        let format = |problem| Error::Format { path: path.to_owned(), problem };
        let index: Self = serde_json::from_slice(text).map_err(|error| format(damaged(&error)))?;
        if let Some(file) = index.shards().find(|file| !is_plain_name(file)) {
            let problem = format!(
                "names the shard `{file}`, which is not a plain file name: fetch the index again \
                 from a source that you trust"
            );
            return Err(format(problem));
        }
        Ok(index)
    }

    /// Each shard once, in order.
    fn shards(&self) -> impl Iterator<Item = &str> {
        let once: BTreeSet<&str> = self.weight_map.0.iter().map(|(_, file)| &**file).collect();
        once.into_iter()
    }
}

/// Whether a name stays inside the checkpoint's folder, on any system.
fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

fn damaged(error: &serde_json::Error) -> String {
    format!("{error}: cut short or damaged, fetch it again")
}

fn read_file(path: &Path, file: &Bytes) -> Result<Vec<(String, Tensor)>, Error> {
    let broken = |problem: String| Error::Format { path: path.to_path_buf(), problem };
    let length: [u8; 8] =
        file.get(..8).and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
            let problem = "too short for safetensors: cut short, fetch it again";
            broken(format!("{} bytes: {problem}", file.len()))
        })?;
    let header_len = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if header_len > HEADER_BYTES_MAX || header_len > file.len() - 8 {
        return Err(broken(format!(
            "the header claims {header_len} bytes, the file has {}: cut short or not safetensors, fetch \
             it again",
            file.len()
        )));
    }
    let header: Header = serde_json::from_slice(&file[8..8 + header_len])
        .map_err(|error| broken(format!("header: {}", damaged(&error))))?;
    let data = file.slice(8 + header_len..file.len()).expect("the header lies inside the file");
    check_overlap(path, &header)?;
    header.0.into_iter().map(|(name, entry)| locate(path, &data, name, entry)).collect()
}

fn check_overlap(path: &Path, header: &Header) -> Result<(), Error> {
    let mut spans: Vec<(Range<usize>, &str)> =
        header.0.iter().map(|(name, e)| (e.data_offsets.0..e.data_offsets.1, &**name)).collect();
    spans.sort_by_key(|(span, _)| (span.start, span.end));
    for pair in spans.windows(2) {
        if pair[1].0.start < pair[0].0.end {
            let problem = format!(
                "its bytes overlap those of `{}`: the file is damaged, fetch it again",
                pair[0].1
            );
            return Err(Error::Tensor {
                path: path.to_path_buf(),
                tensor: pair[1].1.into(),
                problem,
            });
        }
    }
    Ok(())
}

fn locate(
    path: &Path,
    data: &Bytes,
    name: String,
    entry: Entry,
) -> Result<(String, Tensor), Error> {
    let (start, end) = entry.data_offsets;
    let wrong =
        |problem: String| Error::Tensor { path: path.to_path_buf(), tensor: name.clone(), problem };
    let bytes = data.slice(start..end).ok_or_else(|| {
        wrong(format!(
            "its bytes {start}..{end} are not inside the file's {} bytes of data: the file is cut \
             short or damaged, fetch it again",
            data.len()
        ))
    })?;
    if let Some(size) = entry.dtype.size_bytes() {
        let wanted = entry.shape.0.iter().try_fold(size, |product, &n| product.checked_mul(n));
        if wanted != Some(bytes.len()) {
            return Err(wrong(format!(
                "{:?} {:?} does not fit the {} bytes it has: the file is damaged, fetch it again",
                entry.dtype,
                entry.shape.0,
                bytes.len()
            )));
        }
    }
    let tensor =
        Tensor { path: path.to_path_buf(), dtype: entry.dtype, shape: entry.shape.0, bytes };
    Ok((name, tensor))
}

#[derive(Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Dims,
    data_offsets: (usize, usize),
}

/// The header's entries in file order.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(PairsVisitor { skip: Some("__metadata__"), of: PhantomData })
            .map(Self)
    }
}

/// An object's fields in file order; a repeated name is an error where a map would keep one.
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor { skip: None, of: PhantomData }).map(Self)
    }
}

struct PairsVisitor<T> {
    skip: Option<&'static str>,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
    type Value = Vec<(String, T)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut seen = HashSet::new();
        let mut pairs = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if self.skip == Some(&*name) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor `{name}` stands twice")));
            }
            pairs.push((name, map.next_value()?));
        }
        Ok(pairs)
    }
}

/// A tensor's dimensions: no more than any tensor of the family has, however many a file lists.
struct Dims(Vec<usize>);

const RANK_MAX: usize = 8;

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DimsVisitor).map(Self)
    }
}

struct DimsVisitor;

impl<'de> Visitor<'de> for DimsVisitor {
    type Value = Vec<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<usize>, A::Error> {
        let mut dims = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if dims.len() == RANK_MAX {
                return Err(A::Error::custom(format!(
                    "a tensor of more than {RANK_MAX} dimensions"
                )));
            }
            dims.push(dim);
        }
        Ok(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Bytes {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        Bytes::new(std::sync::Arc::new(bytes))
    }

    fn problem(file: &Bytes) -> String {
        read_file("f.safetensors".as_ref(), file).expect_err("must be refused").to_string()
    }

    #[test]
    fn a_good_file_gives_its_tensors() {
        let header = r#"{"__metadata__":{"format":"mlx"},
            "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "b":{"dtype":"U32","shape":[1,1],"data_offsets":[8,12]}}"#;
        let tensors = read_file("f".as_ref(), &file(header, 12)).expect("good");
        assert_eq!(tensors.len(), 2);
        assert_eq!(tensors[1].1.shape, [1, 1]);
        assert_eq!(tensors[0].1.bytes.len(), 8);
    }

    #[test]
    fn damage_is_named() {
        assert!(problem(&Bytes::new(std::sync::Arc::new(vec![1, 2, 3]))).contains("too short"));
        let absurd = Bytes::new(std::sync::Arc::new(vec![255u8; 16]));
        assert!(problem(&absurd).contains("header claims"));
        let one = |entry: &str| problem(&file(&format!(r#"{{"x":{entry}}}"#), 8));
        assert!(one(r#"{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#).contains("not inside"));
        assert!(one(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#).contains("not inside"));
        assert!(
            one(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#).contains("does not fit")
        );
        let huge =
            format!(r#"{{"dtype":"F32","shape":[{0},{0}],"data_offsets":[0,8]}}"#, usize::MAX);
        assert!(one(&huge).contains("does not fit"));
        assert!(one(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}"#).contains("header"));
    }

    #[test]
    fn overlaps_and_repeated_names_are_refused() {
        let a = r#"{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
        let b = r#"{"dtype":"U8","shape":[4],"data_offsets":[2,6]}"#;
        assert!(problem(&file(&format!(r#"{{"a":{a},"b":{b}}}"#), 8)).contains("overlap"));
        assert!(problem(&file(&format!(r#"{{"a":{a},"a":{a}}}"#), 8)).contains("stands twice"));
    }
}
