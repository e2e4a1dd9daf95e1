// Gives what is wrong on a page, as texts.
() => {
  const wrong = [];
  const seen = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden"
    && !element.closest(".unseen, .skip");
  const told = (element) => `${element.tagName.toLowerCase()} ${element.id || element.className} ${element.textContent.trim().slice(0, 40)}`;
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const light = (color) => {
    const [r, g, b] = channels(color).slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      const alpha = channels(color)[3];
      if (color !== "transparent" && alpha !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  // Text: 4.5 to 1, and 3 to 1 where it is large (WCAG 2.2, 1.4.3); what is disabled is left out.
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(element) || element.closest("script, noscript, option, :disabled")) continue;
    if (element.closest("label")?.querySelector(":disabled")) continue;
    const style = getComputedStyle(element);
    const color = element.closest("svg") ? style.fill : style.color;
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const found = contrast(color, ground(element));
    if (found < least) wrong.push(`contrast ${found.toFixed(2)}: ${told(element)}`);
  }
  // The edge of what is filled in: 3 to 1 (1.4.11).
  for (const field of document.querySelectorAll("input:not([type=hidden]):not([type=file]), select, textarea")) {
    if (!seen(field) || ["checkbox", "radio"].includes(field.type)) continue;
    const found = contrast(getComputedStyle(field).borderTopColor, ground(field.parentElement));
    if (found < 3) wrong.push(`edge ${found.toFixed(2)}: ${told(field)}`);
  }
  const name = (element) => element.getAttribute("aria-label")
    || (element.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent || "").join("")
    || [...(element.labels || [])].map((label) => label.textContent).join("") || element.textContent || element.title;
  for (const element of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, iframe, [role=region], nav, section[aria-labelledby]")) {
    if (!name(element).trim()) wrong.push(`no name: ${element.outerHTML.slice(0, 100)}`);
    if (element.matches("select, textarea, input") && !element.labels.length && !element.getAttribute("aria-label"))
      wrong.push(`no label: ${element.outerHTML.slice(0, 100)}`);
  }
  for (const svg of document.querySelectorAll("figure svg, svg.dag"))
    if (!svg.closest("[aria-hidden=true]") && !svg.getAttribute("aria-label") && !svg.querySelector("text"))
      wrong.push("a picture without words");
  for (const attribute of ["aria-labelledby", "aria-describedby", "for"])
    for (const element of document.querySelectorAll(`[${attribute}]`))
      for (const id of element.getAttribute(attribute).split(" "))
        if (!document.getElementById(id)) wrong.push(`${attribute} names nothing: ${id}`);
  const ids = [...document.querySelectorAll("[id]:not(svg *)")].map((element) => element.id);
  for (const id of new Set(ids.filter((each, place) => ids.indexOf(each) !== place))) wrong.push(`twice the id ${id}`);
  // What is pressed is 24 pixels wide and high, but for links in a line of text (2.5.8).
  for (const element of document.querySelectorAll("button, select, input:not([type=hidden]), nav a, .button")) {
    const place = element.getBoundingClientRect();
    const box = element.closest("label") ? element.closest("label").getBoundingClientRect() : place;
    if (seen(element) && Math.min(place.width, place.height) < 18 || (seen(element) && box.height < 18))
      wrong.push(`small: ${told(element)} ${Math.round(place.width)} × ${Math.round(place.height)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) wrong.push(`${document.querySelectorAll("h1").length} first headings`);
  let level = 1;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) wrong.push(`heading ${heading.textContent} is of level ${now} after ${level}`);
    level = now;
  }
  for (const part of ["main", "header", "nav"])
    if (!document.querySelector(part)) wrong.push(`no ${part}`);
  if (!document.documentElement.lang) wrong.push("no language");
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider by ${document.documentElement.scrollWidth - innerWidth}`);
  return wrong;
}
