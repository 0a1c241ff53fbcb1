use super::*;

fn function(name: &str, is_volatile: bool, language: &str, body: &str) -> Function {
    Function {
        name: name.to_owned(),
        is_volatile,
        takes_one: true,
        language: language.to_owned(),
        body: body.to_owned(),
        ..Function::default()
    }
}

fn builtin_function(name: &str, is_volatile: bool) -> Function {
    Function { name: name.to_owned(), is_builtin: true, is_volatile, takes_one: true, ..Function::default() }
}

fn class(functions: Vec<Function>, name: &str) -> FunctionClass {
    let mut all = vec![builtin_function("nextval", true), builtin_function("lower", false)];
    all.extend(functions);
    learn(&Findings { functions: all, ..Findings::default() }, None, 1).find(name).function.unwrap()
}

#[test]
fn bodies_that_only_read_are_reads() {
    for (language, body) in [
        ("sql", "SELECT count(*) FROM t WHERE a = $1; SELECT 1"),
        ("sql", "BEGIN ATOMIC SELECT 1; SELECT lower($1); END"),
        ("sql", "RETURN lower($1)"),
        ("plpgsql", "DECLARE n int := 0; r record; BEGIN SELECT count(*) INTO n FROM t; RETURN n; END"),
        (
            "plpgsql",
            "BEGIN IF a THEN RETURN CASE WHEN b THEN 1 ELSE c END; ELSE x.y := 2; z = lower('X'); END IF; END",
        ),
        (
            "plpgsql",
            "<<outer>> BEGIN FOR r IN SELECT * FROM t LOOP RETURN NEXT r.update; END LOOP outer; EXCEPTION WHEN others THEN NULL; END",
        ),
    ] {
        assert_eq!(class(vec![function("f", true, language, body)], "f"), FunctionClass::Safe, "{body}");
    }
}

#[test]
fn bodies_that_act_are_not() {
    for (language, body) in [
        ("sql", "INSERT INTO t VALUES (1); SELECT 1"),
        ("sql", "SELECT nextval('s')"),
        ("sql", "SELECT 1 FROM t FOR UPDATE"),
        ("sql", "RETURN nextval('s')"),
        ("plpgsql", "BEGIN INSERT INTO t VALUES (1); END"),
        ("plpgsql", "BEGIN PERFORM nextval('s'); END"),
        ("plpgsql", "BEGIN EXECUTE 'DELETE FROM t'; END"),
        ("plpgsql", "BEGIN RETURN QUERY EXECUTE q; END"),
        ("plpgsql", "BEGIN SELECT 1 INTO x FROM t FOR NO KEY UPDATE; END"),
        ("plpgsql", "BEGIN IF a THEN NOTIFY x; END IF; END"),
        ("plpgsql", "BEGIN SET x = 1; END"),
        ("plpgsql", "BEGIN COMMIT; END"),
        ("plpgsql", "BEGIN frobnicate x; END"),
        ("plpgsql", "BEGIN WITH d AS (DELETE FROM t RETURNING 1) SELECT 1 INTO x; END"),
        ("c", ""),
    ] {
        assert_eq!(class(vec![function("f", true, language, body)], "f"), FunctionClass::Volatile, "{body}");
    }
}

#[test]
fn a_declaration_is_no_proof_against_what_a_body_calls() {
    let f = function("f", false, "sql", "SELECT g(1)");
    let g = function("g", false, "plpgsql", "BEGIN RETURN f(2) + nextval('s'); END");
    assert_eq!(class(vec![f, g], "f"), FunctionClass::Volatile);
    assert_eq!(class(vec![function("f", false, "c", "")], "f"), FunctionClass::Safe);
    assert_eq!(class(vec![function("f", false, "plpgsql", "what is this")], "f"), FunctionClass::Safe);
    assert_eq!(class(vec![function("f", true, "internal", "lower")], "f"), FunctionClass::Volatile);
}

#[test]
fn views_types_and_operators_take_after_what_they_use() {
    let query = |text: &str| Some(Definition::Query(text.to_owned()));
    let relation = |name: &str, class, definition| Relation { name: name.to_owned(), class, definition };
    let findings = Findings {
        functions: vec![
            builtin_function("nextval", true),
            builtin_function("pg_lock_status", false),
            function("noisy", true, "c", ""),
        ],
        relations: vec![
            relation("plain_view", None, query("SELECT a FROM t")),
            relation("counting", None, query("SELECT nextval('s'::regclass) AS n")),
            relation("outer_view", None, query(" SELECT n FROM counting;")),
            relation("locks", None, query("SELECT * FROM pg_lock_status() l(a, b)")),
            relation("scratch", Some(RelationClass::Unlogged), None),
            relation("guarded", None, Some(Definition::Expression("(noisy(a) > 0)".to_owned()))),
        ],
        uses: vec![
            (Object::Relation("parent".to_owned()), Object::Relation("scratch".to_owned())),
            (Object::Operator("<!>".to_owned()), Object::Function("noisy".to_owned())),
            (Object::Type("odd".to_owned()), Object::Function("noisy".to_owned())),
            (Object::Relation("has_odd".to_owned()), Object::Type("odd".to_owned())),
        ],
        checks: vec![("positive".to_owned(), "CHECK ((VALUE > 0))".to_owned())],
        ..Findings::default()
    };
    let catalog = learn(&findings, None, 7);
    for (name, expected) in [
        ("plain_view", None),
        ("counting", Some(RelationClass::View)),
        ("outer_view", Some(RelationClass::View)),
        ("locks", Some(RelationClass::View)),
        ("scratch", Some(RelationClass::Unlogged)),
        ("parent", Some(RelationClass::Unlogged)),
        ("guarded", Some(RelationClass::View)),
        ("has_odd", Some(RelationClass::View)),
    ] {
        assert_eq!(catalog.find(name).relation, expected, "{name}");
    }
    assert!(catalog.find("odd").is_unsafe_type && !catalog.find("positive").is_unsafe_type);
    assert_eq!(*catalog.operators, ["<!>".into()]);
    assert!(catalog.find("nextval").is_attribute);
    assert_eq!(catalog.epoch, 7);
}

#[test]
fn what_was_learnt_before_counts() {
    let builtin = Findings {
        functions: vec![builtin_function("nextval", true), builtin_function("lower", false)],
        relations: vec![Relation {
            name: "pg_locks".to_owned(),
            class: Some(RelationClass::View),
            definition: None,
        }],
        ..Findings::default()
    };
    let base = learn(&builtin, None, 0);
    let own = Findings {
        functions: vec![function("f", false, "sql", "SELECT nextval('s')")],
        ..Findings::default()
    };
    let catalog = learn(&own, Some(&base), 3);
    assert_eq!(catalog.find("f").function, Some(FunctionClass::Volatile));
    assert_eq!(catalog.find("lower").function, Some(FunctionClass::Safe));
    assert_eq!(catalog.find("pg_locks").relation, Some(RelationClass::View));
    assert!(catalog.find("nextval").is_attribute && catalog.find("f").is_attribute);
}
