//! As much of an HTTP client as the tests need: one request a connection, every byte of the answer
//! in view.

use std::{io::ErrorKind, net::SocketAddr};

use serde_json::Value;
use tokio::net::TcpStream;

/// An answer, read to its end.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.body))
    }

    /// A header's value; the name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The payloads of a server-sent event stream.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }

    /// The payloads as JSON, without the closing mark, which must be there.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let events = self.events();
        let (last, chunks) = events.split_last().expect("a stream has events");
        assert_eq!(*last, "[DONE]", "{}", self.body);
        chunks.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }
}

/// Sends the request and reads the whole answer.
pub(crate) async fn send(address: SocketAddr, request: &str) -> Answer {
    let mut bytes = Vec::new();
    let mut connection = open(address, request).await;
    while connection.read(&mut bytes).await > 0 {}
    parse(&bytes)
}

/// Sends the request and leaves the answer to the caller.
pub(crate) async fn open(address: SocketAddr, request: &str) -> Connection {
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let mut rest = request.as_bytes();
    while !rest.is_empty() {
        stream.writable().await.expect("the connection is open");
        match stream.try_write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // A server may refuse a body before it has read it; its answer is there to be read.
            Err(_) => break,
        }
    }
    Connection(stream)
}

/// An answer that is read in parts. Dropping it is a client that leaves.
pub(crate) struct Connection(TcpStream);

impl Connection {
    /// Appends what has arrived, at least one byte unless the answer is over.
    pub(crate) async fn read(&mut self, bytes: &mut Vec<u8>) -> usize {
        let mut buffer = [0; 4096];
        loop {
            self.0.readable().await.expect("the connection is open");
            match self.0.try_read(&mut buffer) {
                Ok(count) => {
                    bytes.extend_from_slice(&buffer[..count]);
                    return count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // What a server that closes early has sent may still be whole.
                Err(_) => return 0,
            }
        }
    }

    /// Waits until the answer has begun, or goes on.
    pub(crate) async fn read_some(&mut self) {
        assert!(self.read(&mut Vec::new()).await > 0, "the answer is over");
    }

    /// Everything that still comes.
    pub(crate) async fn read_rest(mut self) -> String {
        let mut bytes = Vec::new();
        while self.read(&mut bytes).await > 0 {}
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The text of a request.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\
         {headers}\r\n{body}",
        body.len()
    )
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is ASCII");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let mut answer = Answer { status: status.expect("a status"), head, body: String::new() };
    let body = &bytes[end + 4..];
    let body = match answer.header("transfer-encoding") {
        Some("chunked") => join_chunks(body),
        _ => body.to_vec(),
    };
    answer.body = String::from_utf8(body).expect("bodies are UTF-8");
    answer
}

fn join_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).expect("a size is ASCII");
        let size = usize::from_str_radix(size, 16).expect("a size is hexadecimal");
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
    body
}
