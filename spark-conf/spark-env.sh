# shellcheck shell=bash
# Makes a stock Spark understand masters of the form hrm://host:port.
#
# Point SPARK_CONF_DIR at this directory. Spark's launcher sources this file in its own shell, so it
# may rewrite the launcher's arguments. It looks for the master where Spark does: in the arguments,
# then in the properties file or spark-defaults.conf, then in the variable MASTER. It does eleven
# things, for hrm:// masters alone:
#
#   1. hrm://host:port becomes spark+hrm://host:port, the form that spark-submit lets pass;
#   2. the plugin is compiled for this Spark, once, and put on the driver's class path;
#   3. a random secret turns Spark's RPC authentication on (--conf spark.authenticate=false wins).
#      It is handed to Java in an argument file that is unlinked before Java starts: it stands
#      neither in an argument list, nor in the environment, nor on the disk when something fails;
#   4. the AppMaster's Python starts now, to import while the driver's JVM starts;
#   5. where there is an archive of Spark's classes, made by an agent of this machine or by
#      `hrm env --archive`, the driver starts with it (HRM_ARCHIVE=off: it does not);
#   6. where HRM_EVENT_LOG_DIR names a directory, event logs are on and go there. These are Java
#      properties, the weakest of Spark's settings: any of the application's own wins;
#   7. the settings directory that Spark has without SPARK_CONF_DIR, $SPARK_HOME/conf, counts, too, but
#      for its spark-defaults.conf and its spark-env.sh;
#   8. what spark-submit would ignore without a word is not: --num-executors and --queue become the
#      settings that HRM obeys, and a limit on all cores is warned of;
#   9. a principal with its keytab logs the driver in from the first moment, as on YARN: by variables
#      that Hadoop reads itself;
#  10. `--files a.txt#b.txt`, which Spark understands on YARN alone, becomes a link of that name;
#  11. where `hrm warm` keeps drivers ready, one that fits is taken instead of a JVM that starts now
#      (HRM_WARM=off: none is).
#
# For --help and --version Spark answers alone, and none of that is done.
#
# An application may name its master in its code, which this script cannot see: its only one, or that
# of a later context. Where the variables of `hrm env` are set, the plugin therefore goes on the class
# path under a local master, too, if it has been compiled before, and nothing more is done: it refuses
# an hrm:// master without the secret, and says what to add. Otherwise it stays unused. Masters of
# other kinds would hand that class path to their executors.
#
# In cluster deploy mode, and for --status and --kill, none of that is needed here: the arguments go
# as they are to `hrm submit`, in place of a JVM.
#
# Python on executors: where you set PYSPARK_PYTHON (or spark.pyspark.python), it is used on every
# node, as ever. Where you do not, executors use the Python that runs their node's agent, and the
# driver the one that started it, or python3. The two must be of one minor version; Spark says so
# if they are not.
#
# This file may be sourced more than once and must leave other masters alone.

# What an enclosing driver's start has left in the environment is not ours to use.
if [ -n "${HRM_ARGUMENT_FILE:-}" ]; then
  SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS//"$HRM_ARGUMENT_FILE"/}"
fi
if [ -n "${HRM_PLUGIN_JAR:-}" ]; then
  SPARK_DIST_CLASSPATH="${SPARK_DIST_CLASSPATH//"$HRM_PLUGIN_JAR":/}"
  SPARK_DIST_CLASSPATH="${SPARK_DIST_CLASSPATH//"$HRM_PLUGIN_JAR"/}"
fi
unset HRM_ARGUMENT_FILE HRM_PLUGIN_JAR HRM_APPMASTER_PID HRM_APPMASTER_FD HRM_RENAMED_DIR

_hrm_fail() {
  echo "HRM: $1" >&2
  exit 1
}

# True: $1 is an hrm master. Ends the program where it looks like one and is not.
_hrm_is_master() {
  case "$1" in
    hrm://*|spark+hrm://*) ;;
    hrm:*|hrm+*|HRM:*) _hrm_fail "'$1' is not the address of an HRM master; write hrm://HOST:PORT, such as hrm://127.0.0.1:7480" ;;
    *) return 1 ;;
  esac
  local address="${1#*://}"
  local pattern='^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})$'
  if ! [[ "$address" =~ $pattern ]] || (( 10#${BASH_REMATCH[2]} < 1 || 10#${BASH_REMATCH[2]} > 65535 )); then
    _hrm_fail "'$1' is not the address of an HRM master; write hrm://HOST:PORT, such as hrm://127.0.0.1:7480"
  fi
}

# Rewrites the launcher's arguments into HRM_ARGUMENTS; HRM_FOUND says whether any master was ours:
# where none was, the arguments as they were given are the ones to use.
# Ends, as Spark does, at the first argument that is no option: what follows is the application's.
_hrm_rewrite() {
  HRM_ARGUMENTS=("$1")
  HRM_FOUND=
  HRM_OTHER_MASTER=
  HRM_MASTER_VARIABLE=
  HRM_DEPLOY_MODE=
  HRM_CORES_MAX=
  HRM_PRINCIPAL=
  HRM_KEYTAB=
  HRM_NAMING=()
  HRM_NAMED_DEFAULT=
  HRM_ASKS=
  HRM_INFORMS=
  shift
  local properties="" both="" files option value
  while [ $# -gt 0 ]; do
    option="$1"
    value="${2-}"
    case "$option" in
      --master=*) _hrm_take "--master=" "${option#--master=}" option ;;
      --conf=spark.master=*) _hrm_take "--conf=spark.master=" "${option#--conf=spark.master=}" option ;;
      --properties-file=*) properties="${option#--properties-file=}" ;;
      --status=*|--kill=*) HRM_ASKS=1 ;;
      --remote=*) HRM_OTHER_MASTER=elsewhere ;;
      --*=*) ;;
      -h|--help|--version|--usage-error) HRM_INFORMS=1 ;;
      --load-spark-defaults) both=1 ;;
      -v|--verbose|--supervise) ;;
      -*)
        case "$option $value" in
          "--master "*) _hrm_take "" "$value" value ;;
          "--conf spark.master="*|"-c spark.master="*)
            _hrm_take "spark.master=" "${value#spark.master=}" value ;;
          "--properties-file "*) properties="$value" ;;
          "--status "*|"--kill "*) HRM_ASKS=1 ;;
          "--remote "*) HRM_OTHER_MASTER=elsewhere ;;
        esac
        shift
        if [ $# -eq 0 ]; then
          HRM_ARGUMENTS+=("$option")
        else
          _hrm_adapt "$option" "$value" "$option" "$value"
          shift
        fi
        continue ;;
      *) break ;;
    esac
    _hrm_adapt "${option%%=*}" "${option#*=}" "$option"
    shift
  done
  HRM_ARGUMENTS+=("$@")
  files=("${properties:-${SPARK_CONF_DIR:-}/spark-defaults.conf}")
  if [ -n "$both" ] && [ -n "$properties" ]; then
    files+=("${SPARK_CONF_DIR:-}/spark-defaults.conf")
  fi
  if [ -z "$HRM_FOUND$HRM_OTHER_MASTER" ]; then
    _hrm_default_master "${files[@]}"
  fi
  if [ -n "$HRM_FOUND" ] && [ -z "$HRM_DEPLOY_MODE" ]; then
    HRM_DEPLOY_MODE="$(_hrm_property spark.submit.deployMode "${files[@]}")"
    HRM_DEPLOY_MODE="${HRM_DEPLOY_MODE:-${DEPLOY_MODE:-}}"
  fi
  if [ -n "$HRM_INFORMS" ]; then
    HRM_FOUND= # the arguments as they were given: nothing will run
  elif [ -n "$HRM_FOUND" ]; then
    _hrm_judge
    [ -n "$HRM_ASKS" ] || _hrm_login "${files[@]}"
    HRM_NAMED_DEFAULT="$(_hrm_property spark.files "${files[@]}")"
  fi
}

# $1: an option, $2: its value; then the same as it was given. Adds it to HRM_ARGUMENTS.
_hrm_adapt() {
  case "$1 $2" in
    "--num-executors "*)
      HRM_ARGUMENTS+=(--conf "spark.executor.instances=$2")
      return ;;
    "--queue "*)
      HRM_ARGUMENTS+=(--conf "spark.hrm.queue=$2")
      return ;;
    "--deploy-mode "*) HRM_DEPLOY_MODE="$2" ;;
    "--conf spark.submit.deployMode="*|"-c spark.submit.deployMode="*)
      HRM_DEPLOY_MODE="${HRM_DEPLOY_MODE:-${2#*=}}" ;; # the option wins, as in spark-submit
    "--total-executor-cores "*) HRM_CORES_MAX="$1" ;;
    "--conf spark.cores.max="*|"-c spark.cores.max="*) HRM_CORES_MAX="spark.cores.max" ;;
    "--principal "*) HRM_PRINCIPAL="$2" ;;
    "--keytab "*) HRM_KEYTAB="$2" ;;
    "--conf spark.kerberos.principal="*|"-c spark.kerberos.principal="*)
      HRM_PRINCIPAL="${HRM_PRINCIPAL:-${2#*=}}" ;;
    "--conf spark.kerberos.keytab="*|"-c spark.kerberos.keytab="*)
      HRM_KEYTAB="${HRM_KEYTAB:-${2#*=}}" ;;
  esac
  case "$1 $2" in
    "--files "*#*|"--conf spark.files="*#*|"-c spark.files="*#*) HRM_NAMING+=($(( ${#HRM_ARGUMENTS[@]} + $# - 3 ))) ;;
  esac
  shift 2
  HRM_ARGUMENTS+=("$@")
}

# Gives files their names, in HRM_ARGUMENTS: in those at the indices HRM_NAMING, and in what a properties
# file has, whose place is in front, where all else can still override it. $1, $2: an index, a list.
_hrm_name_files() {
  if [ "${#HRM_NAMING[@]}" -eq 0 ] && [[ "$HRM_NAMED_DEFAULT" != *"#"* ]]; then
    return 0
  fi
  HRM_RENAMED_DIR="$(umask 077 && mktemp -d)" || _hrm_fail "cannot make a directory in ${TMPDIR:-/tmp}; set TMPDIR"
  export HRM_RENAMED_DIR
  local at pattern='^(--files=|(--conf=)?spark\.files=)?(.*)$'
  for at in "${HRM_NAMING[@]}"; do
    [[ "${HRM_ARGUMENTS[$at]}" =~ $pattern ]]
    _hrm_named "$at" "${BASH_REMATCH[3]}"
    HRM_ARGUMENTS[at]="${BASH_REMATCH[1]}$HRM_NAMED"
  done
  if [[ "$HRM_NAMED_DEFAULT" == *"#"* ]]; then
    _hrm_named default "$HRM_NAMED_DEFAULT"
    HRM_ARGUMENTS=("${HRM_ARGUMENTS[0]}" --conf "spark.files=$HRM_NAMED" "${HRM_ARGUMENTS[@]:1}")
  fi
}

# $1: a name for this list, $2: the list, as Spark is to have it in HRM_NAMED. The driver removes
# HRM_RENAMED_DIR when it ends.
_hrm_named() {
  if ! mkdir "$HRM_RENAMED_DIR/$1" ||
    ! HRM_NAMED="$("$HRM_PYTHON" -I -S "$HRM_SPARK_DIR/renamed_files.py" "$HRM_RENAMED_DIR/$1" "$2")"; then
    rm -rf "$HRM_RENAMED_DIR"
    exit 1
  fi
}

_hrm_judge() {
  if [ "$HRM_DEPLOY_MODE" = cluster ]; then
    HRM_ASKS=1
    return
  fi
  if [ -n "$HRM_CORES_MAX" ]; then
    echo "HRM: warning: $HRM_CORES_MAX has no effect here; set spark.executor.instances and spark.executor.cores instead" >&2
  fi
}

# $@: properties files. Spark itself logs in only once it has a context, and only for masters that it
# knows: too late for --jars in HDFS, and for the user's name.
_hrm_login() {
  local principal keytab
  principal="${HRM_PRINCIPAL:-$(_hrm_property spark.kerberos.principal "$@")}"
  keytab="${HRM_KEYTAB:-$(_hrm_property spark.kerberos.keytab "$@")}"
  [ -n "$principal" ] && [ -n "$keytab" ] || return 0
  keytab="${keytab#local:}"
  keytab="${keytab#file:}"
  case "$keytab" in ///*) keytab="${keytab#//}" ;; esac
  [ -r "$keytab" ] || _hrm_fail "the keytab $keytab cannot be read on this machine by $(id -un); put it there, or name another with --keytab"
  export KRB5PRINCIPAL="$principal" KRB5KEYTAB="$keytab"
}

# $1: what stands before the master, $2: the master, $3: the variable to hold the rewritten two.
_hrm_take() {
  if _hrm_is_master "$2"; then
    HRM_FOUND=1
    printf -v "$3" '%s' "${1}spark+hrm://${2#*://}"
  else
    _hrm_other "$2"
  fi
}

# $1: a master of another kind.
_hrm_other() {
  case "$1" in
    local|local\[*) HRM_OTHER_MASTER="${HRM_OTHER_MASTER:-local}" ;;
    *) HRM_OTHER_MASTER=elsewhere ;;
  esac
}

# A master in one of the files, or in MASTER: put in front, where all else can still override it.
_hrm_default_master() {
  local value
  value="$(_hrm_property spark.master "$@")"
  if [ -z "$value" ] && [ -n "${MASTER:-}" ]; then
    value="$MASTER"
    HRM_MASTER_VARIABLE=1
  fi
  if [ -z "$value" ]; then
    return
  fi
  if _hrm_is_master "$value"; then
    HRM_FOUND=1
    HRM_ARGUMENTS=("${HRM_ARGUMENTS[0]}" --master "spark+hrm://${value#*://}" "${HRM_ARGUMENTS[@]:1}")
  else
    _hrm_other "$value"
  fi
}

# $1: a setting; then properties files. Prints the value that it has in the first that has it.
_hrm_property() {
  local line pattern file value=""
  pattern="^[[:space:]]*${1//./\\.}([[:space:]]*[=:][[:space:]]*|[[:space:]]+)([^[:space:]]+)[[:space:]]*\$"
  shift
  for file in "$@"; do
    [ -z "$value" ] && [ -r "$file" ] || continue
    while IFS= read -r line || [ -n "$line" ]; do
      if [[ "$line" =~ $pattern ]]; then
        value="${BASH_REMATCH[2]}"
      fi
    done < "$file"
  done
  printf '%s' "$value"
}

# The Python that has hrm, in HRM_PYTHON; the directory of the package hrm.spark, in HRM_SPARK_DIR.
_hrm_find_python() {
  local here candidate
  here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
  if [ -z "${HRM_PYTHON:-}" ]; then
    if [ -x "$here/../.venv/bin/python" ]; then
      HRM_PYTHON="$(cd "$here/../.venv/bin" && pwd)/python"
    elif python3 -P -c 'import hrm.spark' 2>/dev/null; then
      HRM_PYTHON="$(command -v python3)"
    else
      _hrm_fail "no Python that has hrm-spark: install it (pip install hrm-spark), or set HRM_PYTHON to the Python that has it"
    fi
  elif ! command -v "$HRM_PYTHON" >/dev/null 2>&1; then
    _hrm_fail "HRM_PYTHON is $HRM_PYTHON, which cannot be run; set it to the Python that has hrm-spark"
  fi
  for candidate in "$here/../hrm/spark" "$here/.."; do
    if [ -f "$candidate/build.py" ] && [ -d "$candidate/plugin" ]; then
      HRM_SPARK_DIR="$(cd "$candidate" && pwd -P)"
      return
    fi
  done
  HRM_SPARK_DIR="$("$HRM_PYTHON" -P -c 'import hrm.spark; print(hrm.spark.__path__[0])' 2>/dev/null)" ||
    _hrm_fail "$HRM_PYTHON has no hrm-spark; install it there, or set HRM_PYTHON to the Python that has it"
}

# For a master in code: HRM_PLUGIN_JAR, if it is built. Whatever goes wrong, Spark starts without it.
_hrm_offer_plugin() {
  [ -n "${HRM_PYTHON:-}" ] && [ -n "${HRM_TOKEN_FILE:-}" ] || return 0
  HRM_PLUGIN_JAR="$(
    exec 2>/dev/null
    _hrm_find_python && "$HRM_PYTHON" -I -S "$HRM_SPARK_DIR/build.py" --built "$SPARK_HOME"
  )" || HRM_PLUGIN_JAR=
  if [ -n "$HRM_PLUGIN_JAR" ]; then
    SPARK_DIST_CLASSPATH="$HRM_PLUGIN_JAR${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}"
    export HRM_PLUGIN_JAR SPARK_DIST_CLASSPATH
  else
    unset HRM_PLUGIN_JAR
  fi
}

# $SPARK_HOME/conf is where Spark's launcher looks for hive-site.xml and log4j2.properties; where
# SPARK_CONF_DIR names the directory of this file instead, it is at the end of the class path.
_hrm_add_conf() {
  local conf="$SPARK_HOME/conf"
  if [ ! -d "$conf" ] || ! [ "${SPARK_CONF_DIR:-}" -ef "$(dirname "${BASH_SOURCE[0]}")" ]; then
    return 0
  fi
  case ":$SPARK_DIST_CLASSPATH:" in
    *":$conf:"*) ;;
    *) SPARK_DIST_CLASSPATH="$SPARK_DIST_CLASSPATH:$conf" ;;
  esac
}

# Starts the AppMaster with a pipe for its input; this shell becomes the driver's JVM by exec.
_hrm_start_appmaster() {
  set +o posix # process substitution
  exec {HRM_APPMASTER_FD}> >(exec "$HRM_PYTHON" -P -m hrm.spark.appmaster 1>&2)
  HRM_APPMASTER_PID=$!
}

# Prints where event logs are to go; nothing where they are off.
_hrm_event_log_dir() {
  local directory="${HRM_EVENT_LOG_DIR:-}"
  [ -n "$directory" ] || return 0
  if [ ! -d "$directory" ] || [ ! -w "$directory" ]; then
    echo "HRM: warning: no event log: HRM_EVENT_LOG_DIR is $directory, where no file can be written" >&2
    return 0
  fi
  printf '%s' "$directory"
}

# The lines of Java's argument file that turn event logs on, if they are to be.
_hrm_event_log() {
  local directory
  directory="$(_hrm_event_log_dir)"
  [ -n "$directory" ] || return 0
  directory="${directory//\\/\\\\}"
  printf '%s\n' -Dspark.eventLog.enabled=true "\"-Dspark.eventLog.dir=${directory//\"/\\\"}\""
}

_hrm_secret() {
  local file descriptor secret
  file="$(umask 077 && mktemp)" || _hrm_fail "cannot make a file in ${TMPDIR:-/tmp}; set TMPDIR"
  if [ -z "${HRM_WARM_REPLIES:-}" ]; then # a warm driver gets what is an application's with its order
    secret="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" && [ "${#secret}" -eq 64 ] ||
      _hrm_fail "cannot read 32 random bytes from /dev/urandom"
    printf '%s\n' -Dspark.authenticate=true "-Dspark.authenticate.secret=$secret" > "$file"
    _hrm_event_log >> "$file"
    if [ -n "${HRM_START:-}" ]; then # why this driver is not a warm one
      secret="${HRM_START//\\/\\\\}"
      printf '%s\n' "\"-Dspark.hrm.start=${secret//\"/\\\"}\"" >> "$file"
    fi
  fi
  if [ "${HRM_ARCHIVE:-on}" != off ]; then
    SPARK_DIST_CLASSPATH="$SPARK_DIST_CLASSPATH" "$HRM_PYTHON" -I -S "$HRM_SPARK_DIR/archive.py" \
      "$SPARK_HOME" "${SPARK_CONF_DIR:-}" "$@" >> "$file" || : # a driver starts without as well
  fi
  exec {descriptor}< "$file"
  rm -f "$file"
  HRM_ARGUMENT_FILE="@/proc/self/fd/$descriptor"
  SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS:+$SPARK_SUBMIT_OPTS }$HRM_ARGUMENT_FILE"
}

# Becomes the outside of a warm driver where the user's server is there; returns where it is not.
# $@: the launcher's arguments, rewritten; as they were given they are in HRM_GIVEN.
_hrm_take_warm() {
  local address="${HRM_HOME:-${HOME:-}/.hrm}/warm/address"
  if [ "${HRM_WARM:-on}" = off ] || [ -n "${HRM_START:-}${HRM_WARM_REPLIES:-}" ] || [ ! -r "$address" ]; then
    return 0
  fi
  IFS= read -r address < "$address" || return 0
  [ -S "$address" ] || return 0
  export -n address # what is set here is exported otherwise
  exec "$HRM_PYTHON" -I -S "$HRM_SPARK_DIR/warm/client.py" "$address" "$(_hrm_event_log_dir)" \
    "${#HRM_GIVEN[@]}" "${HRM_GIVEN[@]}" "$@"
}

# pyspark names its shell first; it would start Python before anybody looks at what follows.
if [ "${1:-} ${2:-}" = "org.apache.spark.deploy.SparkSubmit pyspark-shell-main" ]; then
  _hrm_rewrite "$1" "${@:3}"
  if [ -n "$HRM_FOUND$HRM_ASKS" ] && [ "$HRM_DEPLOY_MODE" = cluster ]; then
    _hrm_fail "deploy mode cluster cannot run pyspark-shell: its driver would be on a node, away from your terminal; leave --deploy-mode cluster out"
  fi
fi
# A Python shell starts spark-submit once more, from a process without our open files: act there.
if [ "${1:-}" = org.apache.spark.deploy.SparkSubmit ] && [ "${2:-}" != pyspark-shell-main ]; then
  _hrm_rewrite "$@"
  if [ -n "$HRM_FOUND" ]; then
    _hrm_find_python
    if [ -n "$HRM_ASKS" ]; then
      if [ -n "$HRM_MASTER_VARIABLE" ]; then
        set -- "$1" --master "$MASTER" "${@:2}"
      fi
      exec "$HRM_PYTHON" -P -m hrm.cli submit "${@:2}"
    fi
    _hrm_name_files
    HRM_GIVEN=("$@")
    set -- "${HRM_ARGUMENTS[@]}"
    _hrm_take_warm "$@"
    [ -n "${HRM_WARM_REPLIES:-}" ] || _hrm_start_appmaster # a warm driver's waits with it
    HRM_PLUGIN_JAR="$("$HRM_PYTHON" -I -S "$HRM_SPARK_DIR/build.py" "$SPARK_HOME")" || exit 1
    SPARK_DIST_CLASSPATH="$HRM_PLUGIN_JAR${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}"
    _hrm_add_conf
    _hrm_secret "$@"
    export HRM_PYTHON HRM_APPMASTER_PID HRM_APPMASTER_FD HRM_PLUGIN_JAR HRM_ARGUMENT_FILE
    export SPARK_DIST_CLASSPATH SPARK_SUBMIT_OPTS
  elif [ -z "$HRM_ASKS$HRM_INFORMS" ] && [ "$HRM_OTHER_MASTER" != elsewhere ] &&
    [ "$HRM_DEPLOY_MODE" != cluster ]; then # in those, no context is made here
    _hrm_offer_plugin
  fi
  unset HRM_ARGUMENTS HRM_FOUND HRM_OTHER_MASTER HRM_MASTER_VARIABLE HRM_DEPLOY_MODE HRM_CORES_MAX
  unset HRM_ASKS HRM_INFORMS HRM_SPARK_DIR HRM_PRINCIPAL HRM_KEYTAB HRM_NAMING HRM_NAMED HRM_NAMED_DEFAULT HRM_GIVEN
fi
# A program that a driver starts may call spark-submit itself, and must come by here again.
unset SPARK_ENV_LOADED HRM_START
unset -f _hrm_fail _hrm_is_master _hrm_rewrite _hrm_take _hrm_default_master _hrm_find_python
unset -f _hrm_add_conf _hrm_offer_plugin _hrm_start_appmaster _hrm_secret _hrm_event_log _hrm_adapt _hrm_judge _hrm_property
unset -f _hrm_login _hrm_other _hrm_name_files _hrm_named _hrm_take_warm _hrm_event_log_dir
