#include "lab/report_style.hpp"

namespace ninefold::lab::report {

// Colours: blue for won and vermilion for lost stay apart for every common colour blindness, and
// each verdict also has its word and mark. Every text colour has a contrast above 4.5 on its
// ground.
const char* style_sheet() {
  return R"css(
:root{color-scheme:light dark;
--bg:#fdfdfb;--ink:#1c1c1a;--mut:#5e5d58;--line:#dedcd5;--soft:#f4f3ee;--link:#0b5a8a;
--win:#0b5a8a;--win-bg:#dbeaf4;--loss:#963800;--loss-bg:#fbe1d0;--tie:#4b4a45;--tie-bg:#edece6;
--unclear:#5d4a7d;--unclear-bg:#ece6f4;--failed-ink:#fff;--failed-bg:#7a1f2b;
--c1:#00795a;--c2:#b0517f;--c3:#a8650a;--c4:#3b79b5;--roof:#b4480a;--bar:#8d8b83;--own:#1c1c1a}
@media (prefers-color-scheme:dark){:root{
--bg:#151514;--ink:#e9e7e1;--mut:#a7a49b;--line:#383732;--soft:#1f1f1d;--link:#8cc4ec;
--win:#9cd0f3;--win-bg:#12344b;--loss:#ffb48a;--loss-bg:#512407;--tie:#c9c6bd;--tie-bg:#2c2b28;
--unclear:#cdb8ee;--unclear-bg:#352a47;--failed-ink:#fff;--failed-bg:#8c2735;
--c1:#3fc59b;--c2:#e391b9;--c3:#e2a544;--c4:#7db6e8;--roof:#f0935a;--bar:#7d7b74;--own:#f3f1ea}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 Inter,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums lining-nums;font-variant-ligatures:no-contextual}
main{max-width:1120px;margin:0 auto;padding:28px 20px 64px}
h1,h2,h3,h4{line-height:1.2;font-weight:650;letter-spacing:-.01em;margin:0}
h1{font-size:15px;letter-spacing:0;color:var(--mut);font-weight:600}
h2{font-size:23px;margin:0 0 6px}
h3{font-size:23px}
h4{font-size:16px;margin:30px 0 2px}
small{font-size:.65em;font-weight:500;color:var(--mut);letter-spacing:0}
p{margin:6px 0;max-width:72ch}
code,pre{font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0;color:var(--mut)}
a{color:var(--link);text-underline-offset:2px}
section{margin-top:44px}
section.device{margin-top:18px}
section.device+section.device{padding-top:22px;border-top:1px solid var(--line)}
section.op{border-top:2px solid var(--ink);padding-top:12px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:18px;font-size:14px}
.meta,.note,.sub,.sub-inline,.key{color:var(--mut);font-size:13px}
.sub{display:block}
.meta,.summary{max-width:none}
.how p{font-size:16px}
dl{margin:0}
dt{color:var(--mut);font-size:12.5px}
dd{margin:0}
.counts{display:flex;flex-wrap:wrap;gap:8px 34px;margin-top:14px}
.counts dd{font-size:34px;line-height:1.1;font-weight:600;letter-spacing:-.02em}
.counts .zero dd{color:var(--mut);font-weight:400}
.counts div{display:flex;flex-direction:column-reverse}
.counts .c-LOSS:not(.zero) dd{color:var(--loss)}
.counts .c-WIN:not(.zero) dd{color:var(--win)}
.counts .c-UNCLEAR:not(.zero) dd{color:var(--unclear)}
.bar{display:flex;gap:2px;height:8px;margin:12px 0 14px}
.bar i{display:block;min-width:3px}
.bar .c-LOSS{background:var(--loss)}.bar .c-WIN{background:var(--win)}
.bar .c-TIE{background:var(--bar)}
.bar .c-UNCLEAR{background:repeating-linear-gradient(45deg,var(--unclear) 0 3px,transparent 3px 6px)}
.ratios{display:flex;flex-wrap:wrap;gap:10px 44px}
.ratios dd{font-size:19px;font-weight:600}
.ratios .sub{font-weight:400}
table{border-collapse:collapse;font-size:13.5px}
th{font-weight:500;text-align:right}
thead th{color:var(--mut);font-size:12.5px;vertical-align:bottom;padding-bottom:5px;
border-bottom:1px solid var(--line)}
td,th{padding:5px 10px;vertical-align:top}
td{text-align:right}
.left,tbody th{text-align:left}
.scroll{overflow-x:auto;margin:10px 0;padding-bottom:2px}
.scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid var(--link);
outline-offset:2px}
.shape{white-space:nowrap}
th .sub,td .sub{font-weight:400;font-size:12px}
.badge{display:inline-block;padding:0 7px;border-radius:3px;font-size:11.5px;line-height:19px;
font-weight:650;letter-spacing:.03em;white-space:nowrap}
.win{background:var(--win-bg);color:var(--win)}
.loss{background:var(--loss-bg);color:var(--loss)}
.tie{background:var(--tie-bg);color:var(--tie)}
.unclear{background:var(--unclear-bg);color:var(--unclear)}
.failed{background:var(--failed-bg);color:var(--failed-ink)}
.absent,.unrated{color:var(--mut);box-shadow:inset 0 0 0 1px var(--line)}
.stale-mark{color:var(--unclear);font-size:11.5px;font-weight:650;text-decoration:underline dotted;
text-underline-offset:2px}
.matrix{border-collapse:separate;border-spacing:2px}
.matrix thead th{text-align:center;border:0;padding:2px 8px}
.matrix thead tr:first-child th:first-child{text-align:left;padding-left:0}
.matrix tbody th{position:sticky;left:0;background:var(--bg);padding:4px 14px 4px 0;z-index:1}
.matrix td{text-align:center;min-width:84px;padding:4px 8px;border-radius:3px;line-height:1.3}
.matrix .n{display:block;font-size:14px;font-weight:600}
.matrix .w{font-size:10.5px;font-weight:600;letter-spacing:.03em;white-space:nowrap}
.matrix .is-stale{background-image:repeating-linear-gradient(45deg,transparent 0 6px,var(--bg) 6px 7px)}
.matrix .is-stale .stale-mark{color:inherit;font-size:10.5px}
.matrix .none{color:var(--mut)}
.plain td,.plain th,.cases td{border-bottom:1px solid var(--line)}
.plain tbody td:first-child{text-align:left}
.plain tbody .first td:nth-child(2){text-align:left}
.cards{width:100%}
.cards th,.cards td{text-align:left;padding-left:0;padding-right:18px}
.cards td{border-bottom:1px solid var(--line)}
.cards td:nth-child(2){min-width:17em}
.cards td:last-child{padding-right:0}
.lost{color:var(--loss);font-size:16px}
.ratio{white-space:nowrap}
.ratio b{display:inline-block;min-width:3.6em;font-weight:600}
.strip{width:120px;height:16px;vertical-align:-3px;margin-left:8px}
.strip .one{stroke:var(--mut);stroke-width:1}
.strip .span{stroke:var(--ink);stroke-width:1.6}
.strip .middle{fill:var(--ink)}
.list{list-style:none;padding:0;margin:8px 0}
.list li{padding:6px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
.summary{display:flex;flex-wrap:wrap;gap:4px 14px;align-items:baseline}
figure{margin:0}
figcaption{font-size:13.5px}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));
gap:18px 22px;margin-top:12px}
.panels figcaption{font-weight:600}
.panels svg,.roofline>svg{display:block;width:100%;height:auto}
.roofline{display:grid;grid-template-columns:minmax(0,460px) minmax(0,1fr);gap:10px 34px;
align-items:center;margin-top:26px;max-width:900px}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:8px}
.key>span{white-space:nowrap}
.swatch{width:26px;height:12px;margin-right:6px;vertical-align:-1px}
.swatch.dot{width:12px}
svg text{font-size:11px;fill:var(--mut);font-family:inherit}
svg .grid{stroke:var(--line);stroke-width:.7}
.roof{fill:none;stroke:var(--roof);stroke-width:1.3;stroke-dasharray:6 3}
.curve{fill:none;stroke-width:1.4}
.mark{stroke:var(--bg);stroke-width:1}
.curve.s0{stroke:var(--own);stroke-width:2.2}.mark.s0{fill:var(--own)}
.curve.s1{stroke:var(--c1)}.mark.s1{fill:var(--c1)}
.curve.s2{stroke:var(--c2);stroke-dasharray:5 2}.mark.s2{fill:var(--c2)}
.curve.s3{stroke:var(--c3);stroke-dasharray:2 2}.mark.s3{fill:var(--c3)}
.curve.s4{stroke:var(--c4);stroke-dasharray:7 2 2 2}.mark.s4{fill:var(--c4)}
.curve.s9{stroke:var(--bar);stroke-dasharray:1 3;stroke-linecap:round}.mark.s9{fill:var(--bar)}
.mark.ink{fill:var(--own)}
.mark.hollow{fill:var(--bg);stroke:var(--own);stroke-width:1.4}
.mark.stale{fill-opacity:.35}
details{margin:6px 0}
summary{cursor:pointer;color:var(--link);padding:3px 0;width:fit-content}
.ladder{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));
gap:20px 36px;margin:8px 0 20px}
.rungs ul{list-style:none;margin:5px 0 0;padding:0}
.rungs li{display:grid;grid-template-columns:9.6em minmax(40px,1fr) 6.2em 4.6em;gap:8px;
align-items:center;font-size:13px;line-height:1.6}
.rungs .sub{display:inline;margin-left:10px}
.rungs .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.rungs .num{text-align:right;white-space:nowrap}
.rungs .why{grid-column:2/-1;color:var(--mut);font-size:12.5px}
.track{height:11px;background:var(--soft);box-shadow:inset -1.5px 0 0 var(--roof)}
.track i{display:block;height:100%;background:var(--bar)}
.own{font-weight:650}.own .track i{background:var(--own)}
.rival .track i{background:repeating-linear-gradient(135deg,var(--c1) 0 4px,transparent 4px 6px)}
.rival .name{color:var(--c1)}
.every>summary{font-size:15px;margin-top:24px}
.cases{width:100%}
.cases .fold td{text-align:left;padding-top:0}
.cases .case>tr:first-child>td{border-bottom:0;padding-top:9px}
.cases .inner td,.cases .inner th{border-bottom:1px solid var(--line);padding:3px 10px}
.cases .inner td:not(.left){text-align:right}
.cases pre{columns:24em}
.cases summary{font-size:12.5px}
.filter{font:inherit;font-size:14px;padding:6px 10px;width:min(100%,340px);color:inherit;
background:var(--soft);border:1px solid var(--line);border-radius:4px;margin:8px 0}
@media (max-width:640px){
body{font-size:16px}
main{padding:20px 16px 48px}
.counts{gap:10px 0;display:grid;grid-template-columns:repeat(3,1fr)}
.counts dd{font-size:30px}
.ratios{display:grid;gap:6px}
.ratios>div{display:grid;grid-template-columns:8em minmax(0,1fr);align-items:baseline}
.roofline{grid-template-columns:minmax(0,1fr)}
.matrix td{min-width:76px}
.rungs li{grid-template-columns:7.6em minmax(20px,1fr) 5.6em 4.3em;gap:6px;font-size:12.5px}
nav a{padding:4px 0}
summary{padding:7px 0}
.cards,.cards tbody,.cards tr,.cards td{display:block}
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards tr{border-bottom:1px solid var(--line);padding:10px 0}
.cards td{border:0;padding:2px 0;display:grid;grid-template-columns:7.4em minmax(0,1fr);gap:8px}
.cards td:nth-child(-n+2)::before{display:none}
.cards td:nth-child(-n+2){grid-template-columns:1fr;min-width:0}
.cards td:nth-child(2){font-size:15px}
.cards td::before{content:attr(data-label);color:var(--mut);font-size:12.5px;line-height:1.8}
}
@media print{
:root{color-scheme:light;--bg:#fff}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:10.5pt}
main{max-width:none;padding:0}
nav,.filter{display:none}
.scroll{overflow:visible}
figure,tr,li,.device{break-inside:avoid}
h2,h3,h4{break-after:avoid}
}
)css";
}

// The page is whole without this: it only adds a filter to the folds that hold every case.
const char* script() {
  return R"js(
for (const fold of document.querySelectorAll('.every')) {
  const field = document.createElement('input');
  field.className = 'filter';
  field.type = 'search';
  field.placeholder = 'Filter: loss, bf16 backward, 4,096 …';
  field.setAttribute('aria-label', 'Filter the cases');
  field.addEventListener('input', () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const body of fold.querySelectorAll('tbody.case')) {
      const text = body.rows[0].textContent.toLowerCase();
      body.hidden = !words.every((word) => text.includes(word));
    }
  });
  fold.querySelector('summary').after(field);
}
)js";
}

}  // namespace ninefold::lab::report
