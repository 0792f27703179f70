//! Tables: what is written can be read, and what cannot be read is named by its line.

use crate::common::AnyProblem;
use arbitrary::Arbitrary;
use girih_plan::csv::{Table, read};
use girih_plan::{Budget, Buffer, solve};

fn text(table: &Table, solution: Option<&girih_plan::Solution>) -> String {
    let mut out = Vec::new();
    table.write(&mut out, solution).expect("a vector takes everything");
    String::from_utf8(out).expect("text")
}

fn error(text: &str) -> String {
    read(text.as_bytes()).expect_err("malformed").to_string()
}

#[test]
fn rows_are_read_with_a_header_or_without() {
    let buffers = [Buffer { lower: 0, upper: 4, size: 10 }, Buffer { lower: 2, upper: 3, size: 7 }];
    for text in [
        "id,lower,upper,size\na,0,4,10\nb,2,3,7\n",
        "a,0,4,10\nb,2,3,7",
        "\u{feff}id, lower, upper, size\r\na, 0, 4, 10\r\n\r\n# a comment\r\nb, 2, 3, 7\r\n",
        "size,upper,id,lower\n10,4,a,0\n7,3,b,2\n",
    ] {
        let table = read(text.as_bytes()).expect(text);
        assert_eq!(table.problem.buffers, buffers, "{text}");
        assert_eq!(table.ids, ["a".into(), "b".into()]);
        assert_eq!((table.offsets, table.problem.period, table.problem.alignment), (None, 0, 1));
    }
}

#[test]
fn offsets_are_read_where_there_are_some() {
    for text in ["id,lower,upper,size,offset\na,0,4,10,512\n", "a,0,4,10,512\n"] {
        let table = read(text.as_bytes()).expect(text);
        assert_eq!(table.offsets, Some(vec![512]));
        assert_eq!(table.solution().expect("offsets").height, 522);
    }
}

#[test]
fn ticks_beyond_32_bits_are_numbered_and_written_back() {
    let text_in = "id,lower,upper,size\na,5000000000,9000000000,1\nb,7,5000000000,2\n";
    let table = read(text_in.as_bytes()).expect("wide ticks");
    let lives: Vec<_> = table.problem.buffers.iter().map(|b| (b.lower, b.upper)).collect();
    assert_eq!(lives, [(1, 2), (0, 1)]);
    assert_eq!(text(&table, None), text_in);
}

#[test]
fn a_table_reads_back_as_it_was_written() {
    arbtest::arbtest(|u| {
        let AnyProblem(mut problem) = AnyProblem::arbitrary(u)?;
        (problem.period, problem.alignment) = (0, 1);
        let solution = solve(&problem, Budget::attempts(2)).expect("valid").solution;
        let table = Table::from(problem);
        let again = read(text(&table, Some(&solution)).as_bytes()).expect("written by us");
        assert_eq!(again.offsets.as_ref(), Some(&solution.offsets));
        assert_eq!(Table { offsets: None, ..again }, table);
        Ok(())
    });
}

#[test]
fn errors_name_the_line_and_the_cell() {
    assert_eq!(
        error("id,lower,upper,size\n0,0,4,1\n1,0,x,1\n"),
        "write a whole number from 0 to 2^64 - 1 in line 3: its upper is `x`"
    );
    assert_eq!(
        error("0,0,4,1\n1,4,4,1\n"),
        "make upper more than lower in line 2: its buffer lives in [4, 4), which is never"
    );
    assert_eq!(error("0,0,4,1\n1,0,4\n"), "give line 2 the columns of a row, 4: it has 3");
    assert_eq!(error("0,0,4\n"), "give line 1 the columns of a row, 4: it has 3");
    assert!(
        error("id,lower,upper,size,colour\n")
            .ends_with("the header in line 1 has an unknown column `colour`")
    );
    assert!(
        error("id,lower,lower,size\n").ends_with("the header in line 1 has two columns `lower`")
    );
    assert!(error("id,lower,upper\n").ends_with("the header in line 1 has no column `size`"));
    assert!(error("0,0,4,18446744073709551616\n").contains("size"));
    assert!(error("0,0,4,-1\n").contains("line 1"));
    let not_text = read(&b"0,0,4,1\n\xff\xfe\n"[..]).expect_err("not text").to_string();
    assert!(not_text.starts_with("line 2 could not be read"), "{not_text}");
}

#[test]
fn any_bytes_are_read_or_refused_without_a_panic() {
    arbtest::arbtest(|u| {
        let alphabet: &[&[u8]] =
            &[b"id", b",", b"\n", b"lower", b"7", b"99999999999", b"#", b"\xc3"];
        let mut bytes = Vec::new();
        for _ in 0..u.int_in_range(0..=60)? {
            bytes.extend_from_slice(u.choose(alphabet)?);
        }
        if let Ok(table) = read(&bytes[..]) {
            table.problem.validate().expect("what is read is valid, or its sizes are too large");
        }
        Ok(())
    });
}

#[test]
fn a_line_that_does_not_end_is_refused_in_bounded_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(b'7'));
    let error = girih_plan::csv::read(endless).unwrap_err().to_string();
    assert_eq!(error, "give a table of numbers: line 1 is longer than 65536 bytes");
}
