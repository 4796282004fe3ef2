use super::{MixerKind, MlpShape, Shape};
use crate::backend::SequenceBytes;

/// What a tensor is for; norms stand apart from the stages that they come before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Token embeddings; also the head where embeddings are tied.
    Embed,
    /// Gated DeltaNet mixers.
    DeltaNet,
    /// Attention mixers.
    Attention,
    /// Routers of the experts.
    Router,
    /// Routed experts.
    Experts,
    /// Shared experts and their gates.
    SharedExpert,
    /// Feed-forward parts of dense layers.
    Mlp,
    /// Gains before mixers and feed-forward parts, and before the head.
    Norms,
    /// Output head.
    Head,
}

/// A tensor of the model as its files hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the checkpoint; of the three parts of a quantised one, that of `weight`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Dimensions of the values, outermost first; of a quantised tensor as if it were unpacked.
    pub shape: Vec<usize>,
    /// Bits of an element, without scales and biases.
    pub bits: usize,
    /// Elements that share a scale and a bias; `None` for a tensor that is not quantised.
    pub group: Option<usize>,
    /// Bytes in the files, scales and biases included.
    pub bytes: usize,
}

/// What a model takes and what its tokens cost, by its dimensions alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Each role that the model has.
    pub roles: Vec<RoleFigures>,
    /// Weights of the model.
    pub parameters: u64,
    /// Weights that one token is computed with: its embedding, and of the experts those it visits.
    pub parameters_active: u64,
    /// Bytes of the weights in the files.
    pub bytes: u64,
    /// Bytes of weights that a decoded token reads.
    pub decode_weight_bytes: u64,
    /// Floating-point operations of a prefilled token, but for those that its position adds: two
    /// for each weight of a product, and the delta rule's. The head is left out: of a prompt it
    /// sees the last token alone.
    pub prefill_flop: u64,
    /// What is added for each token that it attends to, itself included.
    pub attend_flop: u64,
}

/// One role's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFigures {
    /// The role.
    pub role: Role,
    /// Weights.
    pub parameters: u64,
    /// Weights that one token is computed with.
    pub parameters_active: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// Bits and group sizes of its tensors, most weights first; a group of `None` is not
    /// quantised.
    pub formats: Vec<(usize, Option<usize>)>,
}

/// Operations of the delta rule for each element of its state: fade 1, read with the key 2,
/// write 2, read with the query 2.
pub const DELTA_FLOP: usize = 7;
/// Operations for each element of a query and each token it attends to: score 2, value 2.
pub const ATTEND_FLOP: usize = 4;

impl Figures {
    /// Adds up the tensors of a checkpoint.
    pub fn of(shape: &Shape, tensors: &[TensorInfo]) -> Self {
        let roles: Vec<RoleFigures> = Role::ALL
            .into_iter()
            .map(|role| RoleFigures::of(role, shape, tensors))
            .filter(|figures| figures.parameters > 0)
            .collect();
        let sum = |figure: fn(&RoleFigures) -> u64| roles.iter().map(figure).sum();
        let products = tensors
            .iter()
            .filter(|tensor| tensor.shape.len() > 1)
            .filter(|tensor| !matches!(tensor.role, Role::Embed | Role::Head));
        let delta = shape.layers_of(MixerKind::DeltaNet) * shape.delta_net.state_len();
        let attend = shape.layers_of(MixerKind::Attention) * shape.attention.query_width();
        Self {
            parameters: sum(|role| role.parameters),
            parameters_active: sum(|role| role.parameters_active),
            bytes: sum(|role| role.bytes),
            decode_weight_bytes: tensors.iter().map(|tensor| tensor.read_bytes(shape)).sum(),
            prefill_flop: products.map(|tensor| 2 * tensor.active(shape)).sum::<u64>()
                + (DELTA_FLOP * delta) as u64,
            attend_flop: (ATTEND_FLOP * attend) as u64,
            roles,
        }
    }

    /// Least bytes that a decoded token reads and writes: its weights, its DeltaNet state twice,
    /// its KV cache once.
    pub fn decode_bytes(&self, sequence: SequenceBytes) -> u64 {
        self.decode_weight_bytes + (2 * sequence.state + sequence.kv) as u64
    }
}

impl RoleFigures {
    fn of(role: Role, shape: &Shape, tensors: &[TensorInfo]) -> Self {
        let own = || tensors.iter().filter(|tensor| tensor.role == role);
        let mut formats: Vec<((usize, Option<usize>), u64)> = Vec::new();
        for tensor in own() {
            let format = (tensor.bits, tensor.group);
            match formats.iter_mut().find(|(known, _)| *known == format) {
                Some((_, parameters)) => *parameters += tensor.parameters(),
                None => formats.push((format, tensor.parameters())),
            }
        }
        formats.sort_by_key(|&(_, parameters)| std::cmp::Reverse(parameters));
        Self {
            role,
            parameters: own().map(TensorInfo::parameters).sum(),
            parameters_active: own().map(|tensor| tensor.active(shape)).sum(),
            bytes: own().map(|tensor| tensor.bytes as u64).sum(),
            formats: formats.into_iter().map(|(format, _)| format).collect(),
        }
    }

    /// Bits of a weight, its share of scales and biases included.
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.bytes as f64 / self.parameters as f64
    }
}

impl TensorInfo {
    /// Weights in it.
    pub fn parameters(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }

    /// Weights of it that one token is computed with.
    fn active(&self, shape: &Shape) -> u64 {
        let (part, whole) = self.share(shape);
        self.parameters() / whole * part
    }

    /// Bytes of it that one token reads: vectors are float32 once they are loaded.
    fn read_bytes(&self, shape: &Shape) -> u64 {
        let (part, whole) = self.share(shape);
        let held = match self.group {
            Some(_) => self.bytes as u64,
            None => 4 * self.parameters(),
        };
        held / whole * part
    }

    /// How many of its equal parts, rows of an embedding or experts, one token uses.
    fn share(&self, shape: &Shape) -> (u64, u64) {
        match (self.role, &shape.mlp) {
            (Role::Embed, _) if !shape.tied_embeddings => (1, shape.vocab as u64),
            (Role::Experts, &MlpShape::Moe { experts, experts_per_token, .. }) => {
                (experts_per_token as u64, experts as u64)
            }
            _ => (1, 1),
        }
    }
}

impl Role {
    /// Every role, in the order of the forward pass.
    pub const ALL: [Role; 9] = [
        Role::Embed,
        Role::DeltaNet,
        Role::Attention,
        Role::Router,
        Role::Experts,
        Role::SharedExpert,
        Role::Mlp,
        Role::Norms,
        Role::Head,
    ];

    /// Its name, in the words of the stages.
    pub fn name(self) -> &'static str {
        match self {
            Role::Embed => "embed",
            Role::DeltaNet => "delta_net",
            Role::Attention => "attention",
            Role::Router => "router",
            Role::Experts => "experts",
            Role::SharedExpert => "shared_expert",
            Role::Mlp => "mlp",
            Role::Norms => "norms",
            Role::Head => "head",
        }
    }
}
