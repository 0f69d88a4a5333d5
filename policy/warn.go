package policy

import (
	"strings"

	"golang.org/x/net/publicsuffix"
)

// warnTarget warns of what is legal in allowed_hosts and wider than it looks.
func (p *parser) warnTarget(t Target, list string, i int) {
	if t.Wildcard {
		switch {
		case isPublicSuffix(t.Name):
			p.warn(atIndex(list, i), "%q covers a public suffix: anybody can register a name below %s and put a server there; name the hosts that are meant", "*."+t.Name, t.Name)
		case isSharedHosting(t.Name):
			p.warn(atIndex(list, i), "%q covers shared hosting: any customer of %s can put a server there; name the hosts that are meant", "*."+t.Name, t.Name)
		}
	}
	if t.IsName() && t.Port == 443 && (t.Proto == ProtocolUDP || t.Proto == ProtocolAny) {
		p.warn(atIndex(list, i), "%q opens QUIC (HTTP/3) to the addresses of the name, and QUIC is not inspected: other names on the same addresses are reached too; leave protocol out to allow HTTPS over TCP alone", t)
	}
}

// isPublicSuffix says that name is on the public suffix list, in either of its
// sections. A top-level name that the list does not know (`internal`) is not.
func isPublicSuffix(name string) bool {
	suffix, icann := publicsuffix.PublicSuffix(name)
	return suffix == name && (icann || strings.IndexByte(suffix, '.') >= 0)
}

// isSharedHosting says that name is one under which a provider gives names to
// whoever asks, and which the public suffix list does not hold (or holds only
// further down, as with s3.amazonaws.com).
func isSharedHosting(name string) bool {
	switch name {
	case "amazonaws.com", "amazonaws.com.cn", "aws.dev", "on.aws", "awsapprunner.com", "elasticbeanstalk.com", "cloudfront.net",
		"windows.net", "core.windows.net", "azure.com", "cloudapp.azure.com", "azure.net", "azurewebsites.net", "azureedge.net",
		"azurefd.net", "azurestaticapps.net", "azurecontainerapps.io", "trafficmanager.net", "cloudapp.net",
		"googleapis.com", "storage.googleapis.com", "googleusercontent.com", "appspot.com", "run.app", "web.app", "firebaseapp.com", "firebaseio.com", "cloudfunctions.net",
		"githubusercontent.com", "github.io", "github.dev", "gitlab.io", "gitpod.io",
		"workers.dev", "pages.dev", "r2.dev", "cloudflarestorage.com", "trycloudflare.com", "cfargotunnel.com",
		"vercel.app", "now.sh", "netlify.app", "netlify.com", "herokuapp.com", "onrender.com", "fly.dev", "railway.app", "up.railway.app", "deno.dev", "surge.sh",
		"digitaloceanspaces.com", "ondigitalocean.app", "linodeobjects.com", "vultrobjects.com", "backblazeb2.com", "wasabisys.com",
		"akamai.net", "akamaiedge.net", "akamaized.net", "akamaihd.net", "edgekey.net", "edgesuite.net", "linodeusercontent.com",
		"fastly.net", "fastlylb.net", "edgecompute.app", "b-cdn.net", "cdn77.org", "kxcdn.com",
		"aliyuncs.com", "myqcloud.com", "bcebos.com", "myhuaweicloud.com", "oraclecloud.com", "appdomain.cloud",
		"ngrok.io", "ngrok.app", "ngrok-free.app", "ngrok.dev", "loca.lt", "serveo.net", "ts.net",
		"hf.space", "huggingface.co", "modal.run", "replit.app", "repl.co", "replit.dev", "glitch.me", "streamlit.app",
		"duckdns.org", "no-ip.org", "ddns.net", "nip.io", "sslip.io", "xip.io",
		"wordpress.com", "blogspot.com", "myshopify.com", "sharepoint.com", "zendesk.com", "webhook.site", "pipedream.net":
		return true
	}
	return false
}
