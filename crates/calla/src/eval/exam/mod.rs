//! `calla eval exam`: held-out items, asked and answered the way a client of the server goes.

mod judge;
mod paper;
mod report;

use std::{
    borrow::Cow,
    collections::VecDeque,
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
};

use calla_chat::{ChatStream, Model, Renderer, SamplingOverrides};
use calla_engine::EngineConfig;
use serde_json::json;

use self::{
    judge::{Reply, Wrong},
    paper::{Item, Judge, Paper},
    report::Report,
};
use crate::{
    args::ExamArgs,
    error::Error,
    input,
    model::{self, EMBEDDED_EXAM},
    output,
};

/// Items that the engine is given ahead of the one whose answer is awaited.
const AHEAD: usize = 8;

pub(crate) fn run(args: &ExamArgs, verbose: u8) -> Result<(), Error> {
    let paper = open(args.exam.as_deref())?;
    let items = chosen(&paper, args)?;
    let mut failures = args.failures.as_deref().map(Failures::create).transpose()?;
    let engine = EngineConfig::default();
    let sampling = SamplingOverrides::default();
    let model = model::load_chat(&args.model, &args.backend, engine, sampling, verbose)?;

    let mut report = Report::new(args.model.name(), model.engine().description().to_owned());
    answers(&model, &paper, &items, |index, reply| {
        let item = items[index];
        let result = reply.judge(item);
        report.add(&item.skill, result);
        if items.get(index + 1).is_none_or(|next| next.skill != item.skill) {
            output::note(verbose, &report.last_line());
        }
        match (result, &mut failures) {
            (Err(wrong), Some(failures)) => failures.add(item, &reply, wrong),
            _ => Ok(()),
        }
    })?;
    if let Some(failures) = failures {
        failures.finish()?;
    }
    match args.output.json {
        true => output::json(&report)?,
        false => output::text(&report.table())?,
    }
    match report.missed().filter(|_| args.require_marks) {
        Some(missed) => Err(Error::Marks { missed }),
        None => Ok(()),
    }
}

/// Items of the embedded exam as the model reads them: the prompt and, where one answer is right,
/// that answer without a thought.
pub(super) fn texts(renderer: &Renderer, per_skill: Option<usize>) -> Result<Vec<String>, Error> {
    let paper = open(None)?;
    let text = |item: &Item| {
        let request = paper.request(item).map_err(|problem| item_error(item, problem))?;
        let text = match item.answer() {
            None => renderer.prompt(&request),
            Some(answer) => {
                let messages = [request.messages, vec![answer]].concat();
                renderer.transcript(&messages, &request.tools)
            }
        };
        text.map_err(|error| item_error(item, error.to_string()))
    };
    let skills = paper.skills().into_iter();
    skills.flat_map(|skill| paper.choose(skill, per_skill, 0)).map(text).collect()
}

fn open(exam: Option<&Path>) -> Result<Paper, Error> {
    let (path, text) = match exam {
        Some(path) => (path, Cow::from(input::file(path)?)),
        None => (Path::new("(embedded exam)"), EMBEDDED_EXAM.into()),
    };
    Paper::parse(&text).map_err(|problem| Error::File { path: path.to_owned(), problem })
}

/// The items that the flags ask for, skill by skill.
fn chosen<'a>(paper: &'a Paper, args: &ExamArgs) -> Result<Vec<&'a Item>, Error> {
    let known = paper.skills();
    if let Some(unknown) = args.skills.iter().find(|skill| !known.contains(&skill.as_str())) {
        let problem = format!("the exam has no `{unknown}`: it has {}", known.join(", "));
        return Err(Error::Flag { flag: "skills", problem });
    }
    let unmarked = report::marked().find(|skill| !known.contains(skill));
    if let Some(skill) = unmarked.filter(|_| args.require_marks && args.skills.is_empty()) {
        let problem = format!("the exam has no items of `{skill}`, which has a mark");
        return Err(Error::Flag { flag: "require-marks", problem });
    }
    let wanted = known
        .into_iter()
        .filter(|&skill| args.skills.is_empty() || args.skills.iter().any(|s| s == skill));
    let count = args.per_skill.map(|count| count.get());
    Ok(wanted.flat_map(|skill| paper.choose(skill, count, args.seed)).collect())
}

/// Hands on every item's index and answer, in order.
fn answers(
    model: &Model,
    paper: &Paper,
    items: &[&Item],
    mut take: impl FnMut(usize, Reply) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut asked = VecDeque::new();
    let mut next = items.iter();
    for (index, item) in items.iter().enumerate() {
        for item in next.by_ref().take(AHEAD + 1 - asked.len()) {
            asked.push_back(ask(model, paper, item)?);
        }
        let stream = asked.pop_front().expect("every item is asked before it is awaited");
        take(index, Reply::of(stream).map_err(|problem| item_error(item, problem))?)?;
    }
    Ok(())
}

fn ask(model: &Model, paper: &Paper, item: &Item) -> Result<ChatStream, Error> {
    let request = paper.request(item).map_err(|problem| item_error(item, problem))?;
    model.chat(request).map_err(|error| item_error(item, error.to_string()))
}

fn item_error(item: &Item, problem: String) -> Error {
    Error::Item { id: item.id.clone(), problem }
}

/// The file of wrong answers.
struct Failures {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Failures {
    fn create(path: &Path) -> Result<Self, Error> {
        let path = path.to_owned();
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file: BufWriter::new(file) }),
            Err(error) => Err(Error::File { path, problem: error.to_string() }),
        }
    }

    fn add(&mut self, item: &Item, reply: &Reply, wrong: Wrong) -> Result<(), Error> {
        let expected = match &item.judge {
            Judge::Exact(text) => json!(text),
            Judge::Json(value) => value.clone(),
            Judge::ToolCalls(calls) => json!(calls),
            Judge::Format => json!("any well-formed answer"),
        };
        let line = json!({
            "id": item.id,
            "skill": item.skill,
            "why": wrong.why(),
            "messages": item.messages,
            "tools": item.tools,
            "thinking": item.thinking,
            "expected": expected,
            "got": reply,
        });
        let written = writeln!(self.file, "{line}");
        written.map_err(|error| self.error(&error))
    }

    fn finish(mut self) -> Result<(), Error> {
        let flushed = self.file.flush();
        flushed.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &std::io::Error) -> Error {
        Error::File { path: self.path.clone(), problem: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ModelArgs;

    #[test]
    fn the_texts_of_the_exam_end_in_what_is_expected() {
        let source = ModelArgs { model: None }.source().expect("embedded");
        let renderer = Renderer::load(&source).expect("embedded");
        let paper = open(None).expect("embedded");
        let texts = texts(&renderer, Some(3)).expect("they can be rendered");
        let items = paper.skills().into_iter().flat_map(|skill| paper.choose(skill, Some(3), 0));
        let mut judges = [0; 4];
        for (item, text) in items.zip(&texts) {
            let turn = text.rsplit("<|im_start|>assistant\n").next().expect("there is one");
            let (judge, end) = match &item.judge {
                Judge::Exact(answer) => (0, format!("</think>\n\n{answer}<|im_end|>\n")),
                Judge::Json(_) => (1, "}<|im_end|>\n".into()),
                Judge::ToolCalls(_) => (2, "</tool_call><|im_end|>\n".into()),
                Judge::Format if item.thinking => (3, "<think>\n".into()),
                Judge::Format => (3, "</think>\n\n".into()),
            };
            judges[judge] += 1;
            assert!(turn.ends_with(&end), "{}: {turn:?} does not end in {end:?}", item.id);
        }
        assert_eq!(texts.len(), 3 * paper.skills().len());
        assert!(judges.iter().all(|&count| count > 0), "{judges:?}");
    }
}
