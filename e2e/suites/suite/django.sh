# shellcheck shell=bash disable=SC2034,SC2154
# The part of Django's tests that is about databases, from its source distribution on PyPI, with psycopg.
version=5.2.19
limit=3600

install() {
  python_source django "$version"
  python_packages "django==$version" "psycopg[binary]" psycopg_pool tblib jinja2 Pillow docutils pyyaml pytz
  cat >suite_settings.py <<'PYTHON'
import os


def database(name):
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": "postgres",
        "PASSWORD": os.environ["SUITE_PASSWORD"],
        "HOST": "127.0.0.1",
        "PORT": os.environ["SUITE_PORT"],
        "TEST": {"NAME": name},
    }


DATABASES = {"default": database("suite"), "other": database("suite_other")}
SECRET_KEY = "suite"
USE_TZ = False
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
PYTHON
}

prepare() {
  admin postgres -c "CREATE DATABASE suite_other TEMPLATE template0"
}

run() {
  local apps="backends basic transactions transaction_hooks queries prefetch_related select_for_update select_related
    aggregation aggregation_regress annotations expressions expressions_window expressions_case bulk_create delete
    delete_regress update update_only_fields lookup many_to_many many_to_one migrations migrate_signals schema
    postgres_tests db_functions db_utils get_or_create multiple_database constraints indexes introspection inspectdb
    model_fields ordering raw_query custom_pk dates datetimes defer distinct_on_fields force_insert_update
    generic_relations save_delete_hooks timezones cache sessions_tests contenttypes_tests fixtures async"
  cd source/tests || return
  # shellcheck disable=SC2086
  SUITE_PASSWORD=$password SUITE_PORT=$port PYTHONPATH=$home timeout "$limit" ../../venv/bin/python runtests.py \
    --settings=suite_settings --parallel=1 --keepdb --noinput -v 2 ${DJANGO_APPS:-$apps}
}

results() {
  "$here/results.py" unittest "$out/log"
}
