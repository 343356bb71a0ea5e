"""What a secret, a foreign host, an account or a home folder looks like in text. Every pattern is linear, or bounded, in the text's length.

What training logs and commands are made of (numbers, module paths, special tokens, versions, digests) is told apart here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

TOKEN, HOST, USER, EMAIL_MASK = "<token>", "<host>", "<user>", "<email>"
SHORTEST_SECRET = 8

_ENVIRONMENT_SECRET = re.compile(r"(?i)TOKEN(?!IZER)|SECRET|PASSW|KEY(?!BOARD)|CREDENTIAL|AUTH")
_ORDINARY_VALUE = re.compile(r"(?i)true|false|none|null|[\d.,:+-]+|/(?:tmp|run|usr|etc|dev)/\S*")

# Names whose value is a secret. The last part decides: hub_token, X-Api-Key, MYTOKEN, clientSecret; not eos_token, KeyError or token_acc.
_LAST = (
    r"(?:passwords?|passwd|passphrase|pwd|secrets?|credentials?|tokens?|cookies?|(?:api|access|secret|private|account|shared|license)[_-]?key"
    r"(?:[_-]?id)?|(?:sas|auth)[_-]?(?:key|code)|apikey|authkey|signature)"
)
_NAME = (
    rf"(?:(?i:(?<![\w-])(?:[\w-]*[_-])?{_LAST}(?:[_-]?\d{{1,3}})?)"
    r"|(?<![A-Za-z0-9_])[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|KEY|CREDENTIALS?|AUTH)(?:_?\d{1,3})?"
    r"|(?<![A-Za-z0-9_])[a-z][A-Za-z0-9]*(?:Token|Secret|Password|Key|Credentials?))"
)
SECRET_NAME = re.compile(rf"^-{{0,2}}{_NAME}$")
# How models and tokenizers call their special words, and keys that are none
_HARMLESS_NAME = re.compile(
    r"(?i)^-{0,2}(?:\w*_)?(?:eos|bos|pad|unk|sep|cls|mask|image|video|audio|vision|special|stop|start|end|begin|box|think|new|next|first|last"
    r"|max|min|num|input|output|prompt|completion|response|per|of|total|n|all|decoded|generated|added|extra|response_prefix)_tokens?$"
    r"|^-{0,2}tokens$|(?:^|_)(?:primary|foreign|sort|cache|dict|state|rng|column|messages|label|query|lora)_?key$"
)
_BARE = r"""[^\s"'`,;}\])<>&|\\][^\s"'`,;}\])\\]*"""
_ASSIGNED = re.compile(
    rf"(?P<name>{_NAME})(?P<between>\\?[\"']?[ \t]{{0,8}}(?::=|=>|[=:：＝])[ \t]{{0,8}})"
    rf"(?:(?P<open>\\?[\"'])(?P<quoted>(?!<token>)[^\"'\\\n]{{1,4000}})(?=[\"'\\\n]|$)|(?P<value>{_BARE}))"
)
_FLAGGED = re.compile(rf"(?P<name>(?i:(?<![\w-])--(?:[\w-]*[_-])?{_LAST}))(?P<between>[\"']?,?[ ]{{1,8}}[\"']?)(?!-)(?P<value>{_BARE})")
_TOLD = re.compile(
    r"(?i)(?<!\w)(?P<name>(?:password|passwd|passphrase|pwd|secret|token|(?:api|access)[ _-]?key)[ \t]{1,4}(?:is|was|->)[ \t]{1,4}[\"'`]?)"
    rf"(?P<value>{_BARE})"
)
_NO_VALUE = re.compile(
    r"(?i)(?:not|no|missing|required|invalid|wrong|incorrect|empty|none|null|a|an|the|too|set|unset|stored|used|needed|provided|expired|already"
    r"|in|only|read|taken|valid|unknown|true|false|optional|[\w]*ed|[\w]*ing)[.,:;!?]?$"
)
_CHINESE = re.compile(
    rf"(?P<name>(?:密[码钥]|口令|秘钥|令牌|访问码|凭证)[ \t]{{0,4}}(?:[是为][ ]?[:：]?|[:：=＝])[ ]{{0,4}}[\"'“]?)(?P<value>{_BARE})"
)
_SHAPES = (
    re.compile(
        r"(?<![\w-])(?:hf_(?!transfer\b)[A-Za-z0-9]{8,}|ms-[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]+)*|sk-(?=[\w-]*\d)[\w-]{12,}|sk-[A-Za-z]{18,}"
        r"|sk-(?:proj|ant|svcacct|admin|live|test|or|None)-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|LTAI[0-9A-Za-z]{12,}|AIza[\w-]{30,}"
        r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[abprs]-[\w-]{8,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}"
        r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    ),
    re.compile(
        r"(?i)(?<![\w-])(?P<keep>(?:proxy-)?authorization\\?[\"']?[ \t]{0,8}[:=][ \t]{0,8}\\?[\"']?"
        r"(?:(?:basic|bearer|token|digest|negotiate|apikey|key)[ \t]{1,8})?)(?!<token>|(?:basic|bearer|token)\b)[^\s\"',;<>\\]+"
    ),
    re.compile(r"(?i)(?P<keep>\bbearer )(?!<token>)[\w.~+/=-]{6,}"),
    re.compile(
        r"(?i)(?<![\w-])(?P<keep>(?:set-)?cookie\\?[\"']?[ ]{0,8}[:=][ ]{0,8}\\?[\"']?)(?!<token>)[^\s\"'\\](?:[^\"'\\\n]|\\(?![\"'n]))*"
    ),
    re.compile(r"(?P<keep>://)(?!<token>@)[^\s/@<>]+(?=@)"),
    re.compile(r"(?i)(?P<keep>[?&][\w.-]{0,40}(?:token|sig|signature|key|keyid|secret|passw(?:or)?d|pwd|auth|credential)=)[^\s&#\"'<>\\]+"),
    re.compile(r"(?P<keep>\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-[\w-]{1,40})[ \t]{1,8})AAAA[\w+/=]{4,}(?:[ \t]{1,8}(?!<)[^\s<\"']+)?"),
    re.compile(r"(?P<keep>-----BEGIN [A-Z0-9 ]{1,60}-----)(?!<token>).*?(?=-----END [A-Z0-9 ]{1,60}-----|\Z)", re.DOTALL),
    re.compile(r"(?i)(?P<keep>\blogged[ \t]in[ \t]key[ \t:=]{1,4})(?!<token>)[\w-]{8,}"),
)
_NETRC = re.compile(
    r"(?i)(?<!\w)login\s{1,8}(?!<user>)\S{1,200}\s{1,8}(?P<account>(?:account\s{1,8}\S{1,200}\s{1,8})?)password\s{1,8}\S{1,2000}"
)
_MACHINE = re.compile(r"(?i)(?<!\w)machine\s{1,8}(?!<host>)\S{1,200}(?=\s{1,8}login\s)")
_END_OF_PEM = re.compile(r"-----END [A-Z0-9 ]{1,60}-----")
_BASE64_LINE = re.compile(r"[A-Za-z0-9+/=]{16,}$")
# A key of 40 hexadecimal digits looks like a commit: what stands before it says which it is
_HEX_40 = re.compile(r"(?<![\w<-])[0-9a-f]{40}(?![\w-])")
_DIGEST_BEFORE = re.compile(
    r"(?i)(?:commit|sha-?\d*|digest|nonce|revision|\brev|snapshots?|blobs?|hash|checksum|etag|git|\bHEAD|refs?|tree|checkout|branch|tag|version|"
    r"archive|raw|blob|[+@])\W{0,6}(?:\w{1,12}\W{1,3}){0,2}$"
)

EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?![\w-])")
_SPELLED_EMAIL = re.compile(r"(?i)(?<![\w.+-])[\w.+-]{1,64}[ \t]{0,2}[(\[]at[)\]][ \t]{0,2}[\w.-]{1,80}")
_ACCOUNT = re.compile(
    r"(?<![\w.+@/:<-])(?!(?:recall|precision|ndcg|mrr|map|hits?|pass|acc|accuracy|p|r|top|maj|avg|best)@)[A-Za-z_][\w.+-]*"
    r"@(?!GLIBC|GCC_|CXXABI|OPENSSL|LIB|sha\d|latest\b|main\b|master\b|v?\d|@)[A-Za-z][\w-]*(?:\.[\w-]+)*(?![\w@(])"
)
_HOMES = re.compile(
    r"(?<![\w~.>-])(?:/[\w.-]{1,64}){0,5}?/(?:home|Users|homes)/[^/\s:'\"<>,;)\]|\\]+|(?<![\w~./>-])/root(?![\w.-])"
    r"|(?<![A-Za-z0-9])[A-Za-z]:(?:\\{1,4}|/)(?:[Uu]sers|Documents and Settings)(?:\\{1,4}|/)[^\\/\s:'\"<>,;)\]|]+"
)

_PUBLIC = (
    "github.com|githubusercontent.com|github.io|gitee.com|gitcode.com|gitlab.com|modelscope.cn|modelscope.com|modelscope.ai|huggingface.co|hf.co"
    "|hf-mirror.com|hiascend.com|huawei.com|huaweicloud.com|myhuaweicloud.com|mindspore.cn|pytorch.org|python.org|pypi.org|pythonhosted.org"
    "|aliyun.com|aliyuncs.com|tsinghua.edu.cn|ustc.edu.cn|apache.org|quay.io|docker.io|docker.com|readthedocs.io|readthedocs.org|arxiv.org"
    "|wandb.ai|wandb.com|swanlab.cn|openai.com|nvidia.com|intel.com|microsoft.com|aka.ms|w3.org|json-schema.org|schema.org|conda.io|anaconda.org"
    "|anaconda.com|kernel.org|debian.org|ubuntu.com|gnu.org|llvm.org|numpy.org|scipy.org|stackoverflow.com|google.com|googleapis.com|vllm.ai"
    "|tensorflow.org|pydantic.dev|ray.io|deepspeed.ai|bigscience.huggingface.co|localhost.localdomain"
)
PUBLIC_HOST = re.compile(rf"(?i)(?:[\w-]+\.)*(?:{_PUBLIC.replace('.', '[.]')})$")
# Endings that no file name and no Python name has; and endings that some have, where a numbered label tells a machine
_SURE = r"com|org|cn|edu|gov|mil|corp|lan|intra|intranet|localdomain|example|home|cluster|cloud|tech"
_RISKY = r"net|io|local|internal|ai|dev|co|test|svc|de|uk|jp|fr|ru|us|eu|in|hk|tw|sg|info"
_FQDN = re.compile(rf"(?<![\w.<@/-])(?:[A-Za-z0-9-]+\.)+(?:{_SURE}|{_RISKY})(?![\w(-]|\.\w)", re.ASCII)
_NUMBERED = re.compile(r"(?:^|\.)[A-Za-z]+(?:[\w-]*-)?\w*\d[\w-]*\.|(?:^|\.)[A-Za-z0-9]+-[A-Za-z0-9-]*\.")
_IN_URL = re.compile(r"(?P<scheme>(?<![\w+.-])[A-Za-z][\w+.-]{0,20}|)://(?P<login><token>@)?(?P<host>[A-Za-z0-9][\w.-]*)")
_NO_HOST_SCHEMES = frozenset({"file", "env", "hf", "ms", "modelscope", "huggingface", "package", "module", "npu", "memory"})
_HOST_SAID = re.compile(
    r"(?<![\w.-])(?P<name>(?i:host|hostname|host[ _-]?name|node[ _-]?name|nodename|server[ _-]?name|MASTER_ADDR|machine)\\?[\"']?"
    r"[ \t]{0,12}[:=][ \t]{0,8}\\?[\"']?)(?P<host>[A-Za-z][\w.-]*)(?![\w(\[<.])"
)
_LOG_HEAD = re.compile(
    r"(?m)^(?P<keep>[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d )(?!<host>)[\w.-]{1,80}(?= [\w./-]{1,40}(?:\[\d{1,8}\])?:)"
    r"|(?m:^)(?!<host>)[A-Za-z][\w.-]{1,80}(?=:\d{1,8}:\d{1,8} \[\d{1,3}\] )".replace("(?m:^)", "^")
)
_NO_HOST = re.compile(
    r"(?i)(?:localhost|none|null|true|false|str|int|self|args|auto|any|the|a|is|npu|cpu|host|hostname|name|uvicorn)(?:\W.*)?$"
)


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose name says that they are secret, at least 8 characters long; switches, numbers and sockets are none."""
    found = {value.strip() for name, value in environment.items() if _ENVIRONMENT_SECRET.search(name)}
    return tuple(sorted(v for v in found if len(v) >= SHORTEST_SECRET and not _ORDINARY_VALUE.fullmatch(v)))


def is_secret_name(name: str) -> bool:
    """Whether what goes by this name (an environment variable, a flag, a key) is a secret by its name alone."""
    return bool(SECRET_NAME.match(name)) and not _HARMLESS_NAME.search(name)


def hide_values(text: str, values: Iterable[str]) -> str:
    """`text` without the `values`, the longest first, since one may hold another."""
    for value in sorted({v for v in values if v}, key=lambda v: (-len(v), v)):
        text = text.replace(value, TOKEN)
    return text


def hide_secrets(text: str) -> str:
    for pattern in _SHAPES:
        text = pattern.sub(lambda m: f"{m.groupdict().get('keep') or ''}{TOKEN}", text)
    text = _MACHINE.sub(f"machine {HOST}", _NETRC.sub(lambda m: f"login {USER} {m['account']}password {TOKEN}", text))
    text = _ASSIGNED.sub(_hide_assigned, _CHINESE.sub(lambda m: f"{m['name']}{TOKEN}", text))
    text = _FLAGGED.sub(lambda m: m[0] if _HARMLESS_NAME.search(m["name"]) else f"{m['name']}{m['between']}{TOKEN}", text)
    text = _TOLD.sub(lambda m: m[0] if _NO_VALUE.match(m["value"]) else f"{m['name']}{TOKEN}", text)
    return _hide_cut_pem(_HEX_40.sub(_hide_hex, text))


def hide_accounts(text: str) -> str:
    """Home folders, mail addresses and `user@host`."""
    text = _SPELLED_EMAIL.sub(EMAIL_MASK, EMAIL.sub(EMAIL_MASK, _HOMES.sub("~", text)))
    return _ACCOUNT.sub(f"{USER}@{HOST}", text)


def hide_hosts(text: str) -> str:
    """Host names that aren't this machine's; public ones that say nothing of anybody stay."""
    text = _IN_URL.sub(_hide_in_url, text)
    text = _FQDN.sub(lambda m: m[0] if PUBLIC_HOST.match(m[0]) or not _is_machine(m[0]) else HOST, text)
    text = _HOST_SAID.sub(_hide_said, text)
    return _LOG_HEAD.sub(lambda m: f"{m['keep'] or ''}{HOST}", text)


def _hide_assigned(match: re.Match[str]) -> str:
    name, value = match["name"], match["quoted"] or match["value"]
    if _HARMLESS_NAME.search(name) or re.fullmatch(r"(?i)none|null|true|false|\[|\{", value):
        return match[0]
    is_word = not re.search(r"(?i)pass|pwd|secret", name)
    if is_word and re.fullmatch(r"[-+]?\d{1,7}(?:\.\d*)?(?:e[-+]?\d+)?|<.*|\|.*", value):
        return match[0]
    return f"{name}{match['between']}{match['open'] or ''}{TOKEN}"


def _hide_hex(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - 40) : match.start()]
    return match[0] if _DIGEST_BEFORE.search(before) else TOKEN


def _hide_cut_pem(text: str) -> str:
    """The lines of a key whose beginning was cut off."""
    if not _END_OF_PEM.search(text):
        return text
    lines, inside = text.split("\n"), False
    for number in range(len(lines) - 1, -1, -1):
        if inside and (body := _BASE64_LINE.search(lines[number])):
            lines[number] = lines[number][: body.start()] + TOKEN
        else:
            inside = bool(_END_OF_PEM.search(lines[number]))
    return "\n".join(lines)


def _is_machine(name: str) -> bool:
    ending = name.rpartition(".")[2]
    if re.fullmatch(_SURE, ending, re.IGNORECASE):
        return name.count(".") > 1 or bool(re.fullmatch(r"com|org|cn|edu|gov", ending, re.IGNORECASE)) or bool(_NUMBERED.search(name))
    return bool(_NUMBERED.search(name)) and not re.search(r"(?:^|\.)\d+\.", name)


def _hide_in_url(match: re.Match[str]) -> str:
    host, scheme = match["host"].rstrip("."), match["scheme"].lower()
    public = PUBLIC_HOST.match(host) or not re.search(r"[A-Za-z]", host) or host.lower() == "localhost"
    if public or scheme in _NO_HOST_SCHEMES:
        return match[0]
    return f"{match['scheme']}://{match['login'] or ''}{HOST}{match['host'][len(host) :]}"


def _hide_said(match: re.Match[str]) -> str:
    host = match["host"]
    if _NO_HOST.match(host) or PUBLIC_HOST.match(host):
        return match[0]
    surely = match["name"][:4] == "Host" or match["name"].isupper() or "HOST" in match["name"] or match["name"][:6] == "MASTER"
    return f"{match['name']}{HOST}" if surely or re.search(r"[-\d]", host) else match[0]
