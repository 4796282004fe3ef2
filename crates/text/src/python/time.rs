//! `strftime_now`, in UTC: a prompt must not depend on the machine's time zone.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

/// The present moment in Python's `strftime` format.
pub(super) fn format_utc_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format_utc(format, seconds)
}

const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn format_utc(format: &str, unix_seconds: u64) -> Result<String, Error> {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    let (year, month, day, day_of_year) = civil_date(days);
    let weekday = (days + 4) % 7;
    let weekday_name = WEEKDAYS[weekday as usize];
    let month_name = MONTHS[month - 1];
    let hour_12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let padded = code != Some('-');
        if !padded {
            code = chars.next();
        }
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        out.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month as u64, 2),
            Some('d') => number(day, 2),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second % 60, 2),
            Some('w') => weekday.to_string(),
            Some('u') => ((weekday + 6) % 7 + 1).to_string(),
            Some('A') => weekday_name.to_owned(),
            Some('a') => weekday_name[..3].to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('s') => unix_seconds.to_string(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let reason = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        });
    }
    Ok(out)
}

/// Year, month (1 to 12), day and day of the year of a day counted from 1970-01-01.
fn civil_date(days: u64) -> (u64, usize, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // Whole Gregorian cycles first, so that a broken clock far in the future costs no loop.
    let (mut year, mut rest) = (1970 + days / 146_097 * 400, days % 146_097);
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let day_of_year = rest + 1;
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_python_writes_them() {
        let cases = [
            (0, "1970-01-01 00:00:00 Thu Jan 001 AM 12"),
            (951_827_696, "2000-02-29 12:34:56 Tue Feb 060 PM 12"),
            (1_735_689_599, "2024-12-31 23:59:59 Tue Dec 366 PM 11"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon Mar 060 AM 12"),
        ];
        for (seconds, want) in cases {
            let text =
                format_utc("%Y-%m-%d %H:%M:%S %a %b %j %p %I", seconds).expect("known codes");
            assert_eq!(text, want);
        }
        assert_eq!(format_utc("%-d %B %y%%", 0).expect("known codes"), "1 January 70%");
        assert!(format_utc("%Q", 0).is_err());
    }
}
