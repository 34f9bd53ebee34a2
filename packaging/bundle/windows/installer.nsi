; Installer for Windows of what moss-voice.spec makes, for one user. Not run: the program has not been tried on Windows.
;   makensis /DVERSION=0.1.0 /DSOURCE=C:\moss-voice\dist\moss-voice installer.nsi
Unicode true
SetCompressor /SOLID lzma
!include "MUI2.nsh"

!define NAME "MOSS Voice"
!define KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\MossVoice"

Name "${NAME}"
OutFile "moss-voice-${VERSION}-setup.exe"
RequestExecutionLevel user
InstallDir "$LOCALAPPDATA\Programs\moss-voice"

!insertmacro MUI_PAGE_LICENSE "${SOURCE}\LICENSE"
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "SimpChinese"

Section
    SetOutPath "$INSTDIR"
    RMDir /r "$INSTDIR\_internal" ; of a previous version
    File /r "${SOURCE}\*"
    CreateShortcut "$SMPROGRAMS\${NAME}.lnk" "$INSTDIR\moss-voice-window.exe"
    WriteUninstaller "$INSTDIR\uninstall.exe"
    WriteRegStr HKCU "${KEY}" "DisplayName" "${NAME}"
    WriteRegStr HKCU "${KEY}" "DisplayVersion" "${VERSION}"
    WriteRegStr HKCU "${KEY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
SectionEnd

Section "Uninstall"
    Delete "$SMPROGRAMS\${NAME}.lnk"
    RMDir /r "$INSTDIR\_internal"
    Delete "$INSTDIR\moss-voice.exe"
    Delete "$INSTDIR\moss-voice-window.exe"
    Delete "$INSTDIR\LICENSE"
    Delete "$INSTDIR\NOTICE"
    Delete "$INSTDIR\CHANGELOG.md"
    Delete "$INSTDIR\THIRD-PARTY-LICENSES.txt"
    Delete "$INSTDIR\moss-voice.cdx.json"
    Delete "$INSTDIR\uninstall.exe"
    RMDir "$INSTDIR"
    DeleteRegKey HKCU "${KEY}"
SectionEnd
