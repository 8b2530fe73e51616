get() { exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3; }
exec 2>/dev/null
echo; echo '== mode'; get 10249 /proxyMode && cat <&3
health=$(get 10256 /healthz && cat <&3)
echo; echo '== healthz'; echo "$health"
case $health in *' 503 '*) echo; echo '== goroutines'; get 10249 '/debug/pprof/goroutine?debug=2' && cat <&3;; esac
echo; echo '== table'; cat /proc/net/ip_vs
true
